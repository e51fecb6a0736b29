//! Models cut into pipeline stages: GPT-2, Llama and BERT, from the layer functions of a device.

pub mod model;
