if __name__ != "neuron_compiler.eager_fallback":
    raise ImportError(
        "import this package as 'neuron_compiler.eager_fallback', not 'eager_fallback': "
        "a second copy would have its own empty registries"
    )
