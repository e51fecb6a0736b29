//! Continuation of prompts on several workers.

use anyhow::Result;

use super::{Continue, Generate, begin};
use crate::cli::commands::pipeline::forwards;
use crate::cli::parts::training::written::Continued;
use crate::formats::hf::Pretrained;
use crate::run::evaluate::{Decoding, Staged};

impl Continue<'_> {
    /// Continues them on several workers. Returns the texts on the first process.
    pub(super) fn in_pipeline(self, generate: &Generate) -> Result<Option<Vec<Continued>>> {
        let Self { read: Pretrained { config, weights, .. }, prompts, count, how, mut writers } =
            self;
        let program = generate.pipeline.program(prompts.len())?;
        let model = Staged::new(&config, weights, &program, generate.pipeline.width())?;
        let ids: Vec<&[u32]> = prompts.iter().map(|prompt| prompt.ids.as_slice()).collect();
        let mut has_begun = false;
        let mut drawn = |place: usize, id: u32| {
            if !has_begun {
                begin(&mut writers, prompts)?;
                has_begun = true;
            }
            writers[place].push(id)
        };
        let decoding = Decoding::new(model, &ids, count, how, &mut drawn)?;
        let texts = forwards(
            (decoding.model(), decoding.longest_tensor()),
            generate.device,
            |devices, threads| decoding.in_threads(devices, threads),
            |device, comm, threads| decoding.on_rank(device, comm, threads),
        )?;
        drop(decoding);
        let Some(texts) = texts else { return Ok(None) };
        if !has_begun {
            begin(&mut writers, prompts)?; // no token was asked for
        }
        let texts = texts.into_iter().zip(writers).map(|(ids, writer)| writer.end(ids));
        texts.collect::<Result<_>>().map(Some)
    }
}
