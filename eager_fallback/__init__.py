"""The device ``neuron``: importing this package registers it with PyTorch, and builds its C++ part if need be."""

if __name__ != "neuron_compiler.eager_fallback":
    raise ImportError(
        "import this package as 'neuron_compiler.eager_fallback', not 'eager_fallback': "
        "a second copy would have its own empty registries"
    )

from neuron_compiler.eager_fallback import register as _register

_register.register()
