//! Models cut into pipeline stages: GPT-2, Llama and BERT, built from the layer functions of a
//! device.

pub mod model;
