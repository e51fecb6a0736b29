//! Models cut into pipeline stages: GPT-2, Llama and BERT, over the layer functions that a device offers.

pub mod model;
