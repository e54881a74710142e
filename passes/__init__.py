if __name__ != "neuron_compiler.passes":
    raise ImportError(
        "import this package as 'neuron_compiler.passes', not 'passes': "
        "a second copy would have its own empty registries"
    )
