/* The default model, its vocabulary and the text that it is probed with, as read-only data of the program. Read by embedded.c. */
    .section .rodata, "a"
    .balign 64
    .global sl_embedded_model
    .hidden sl_embedded_model
sl_embedded_model:
    .incbin "engine/models/tiny.safetensors"
    .global sl_embedded_model_end
    .hidden sl_embedded_model_end
sl_embedded_model_end:
    .balign 64
    .global sl_embedded_vocab
    .hidden sl_embedded_vocab
sl_embedded_vocab:
    .incbin "engine/models/tiny.vocab.txt"
    .global sl_embedded_vocab_end
    .hidden sl_embedded_vocab_end
sl_embedded_vocab_end:
    .global sl_embedded_probe
    .hidden sl_embedded_probe
sl_embedded_probe:
    .incbin "engine/models/probe.txt"
    .global sl_embedded_probe_end
    .hidden sl_embedded_probe_end
sl_embedded_probe_end:
    .section .note.GNU-stack, "", %progbits
