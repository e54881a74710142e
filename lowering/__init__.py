if __name__ != "neuron_compiler.lowering":
    raise ImportError(
        "import this package as 'neuron_compiler.lowering', not 'lowering': "
        "a second copy would have its own empty registries"
    )
