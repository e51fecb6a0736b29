//! Self-attention.

use std::ops::Range;

use chimera_core::device::Result;
use chimera_core::layers::{Attention, Dropout, Mask};

use super::number;
use crate::gpu::{Call, Gpu};
use crate::shader::{ATTENTION_BACKWARD, ATTENTION_FORWARD, Constants, Kernel};
use crate::tensor::{Slice, Tensor};
use crate::tuning::Tuning;

static FORWARD: Kernel =
    Kernel { source: &ATTENTION_FORWARD, entry: "forward", n_written: 2, n_read: 2, n_numbers: 12 };
static WEIGH: Kernel =
    Kernel { source: &ATTENTION_BACKWARD, entry: "weigh", n_written: 1, n_read: 2, n_numbers: 1 };
static BACKWARD_QUERIES: Kernel = backward("backward_queries");
static BACKWARD_KEYS: Kernel = backward("backward_keys");
static BACKWARD_VALUES: Kernel = backward("backward_values");

const fn backward(entry: &'static str) -> Kernel {
    Kernel { source: &ATTENTION_BACKWARD, entry, n_written: 1, n_read: 5, n_numbers: 11 }
}

/// The most rows of a tile.
const MAX_TILE: u32 = 32;

/// The attention between rows, and the size of its heads.
#[derive(Clone, Copy)]
struct Heads<'a> {
    by: &'a Attention<'a>,
    /// Features per head.
    dim: usize,
}

impl Gpu {
    pub(crate) fn attention(&self, qkv: &Tensor, by: &Attention<'_>) -> Result<(Tensor, Tensor)> {
        self.attend("attention", qkv, 0, by)
    }

    /// Copies `qkv` to the rows of `cache` from `past` on, and attends to all of them.
    pub(crate) fn attention_after(
        &self,
        qkv: &Tensor,
        cache: &Tensor,
        past: usize,
        by: &Attention<'_>,
    ) -> Result<(Tensor, Tensor)> {
        let (op, n) = ("attention_after", qkv.n_rows());
        self.copy(op, qkv, &cache.rows(past, n))?;
        let context = past + n;
        self.attend(op, &cache.rows(0, context), past, &Attention { context, ..*by })
    }

    /// Computes attention of all rows, except the first `past` rows of the only sample.
    fn attend(
        &self,
        op: &'static str,
        qkv: &Tensor,
        past: usize,
        by: &Attention<'_>,
    ) -> Result<(Tensor, Tensor)> {
        let (rows, heads) = (qkv.n_rows() - past, Heads::of(qkv, by));
        let seen = self.seen(op, by, qkv.n_rows())?;
        let out = self.tensor(op, &[rows, by.heads * heads.dim])?;
        let log_sum = self.tensor(op, &[rows, by.heads])?;
        for block in self.samples(op, qkv, heads, 1)? {
            let seen = self.seen_of(&seen, &block);
            let qkv = qkv.rows(block.start, block.len());
            let [out, log_sum] = [&out, &log_sum].map(|t| t.rows(block.start, block.len() - past));
            let numbers = [&heads.numbers(block.start)[..], &[number(past)]].concat();
            self.run(
                op,
                &Call {
                    kernel: &FORWARD,
                    constants: self.tuning().attention_constants(heads.dim),
                    operands: &[out.all(), log_sum.all(), qkv.all(), seen],
                    numbers: &numbers,
                    groups: self.attention_grid(by, past, by.heads, block.len()),
                },
            )?;
        }
        Ok((out, log_sum))
    }

    pub(crate) fn attention_dx(
        &self,
        dy: &Tensor,
        qkv: &Tensor,
        out: &Tensor,
        log_sum: &Tensor,
        by: &Attention<'_>,
    ) -> Result<Tensor> {
        let op = "attention_dx";
        let (rows, heads) = (qkv.n_rows(), Heads::of(qkv, by));
        let seen = self.seen(op, by, qkv.n_rows())?;
        let d_qkv = self.tensor(op, &[rows, qkv.width()])?;
        for block in self.samples(op, qkv, heads, by.heads / by.kv_heads)? {
            let (start, len) = (block.start, block.len());
            let seen = self.seen_of(&seen, &block);
            let [d_qkv, dy, qkv] = [&d_qkv, dy, qkv].map(|t| t.rows(start, len));
            let [out, log_sum] = [out, log_sum].map(|t| t.rows(start, len));
            let products = self.tensor(op, &[len, by.heads])?;
            let n = products.n_elements();
            self.run(
                op,
                &Call {
                    kernel: &WEIGH,
                    constants: self.tuning().attention_constants(heads.dim),
                    operands: &[products.all(), dy.all(), out.all()],
                    numbers: &[number(n)],
                    groups: self.grid(n.div_ceil(self.tuning().queries as usize)),
                },
            )?;
            for (kernel, n_heads) in [
                (&BACKWARD_QUERIES, by.heads),
                (&BACKWARD_KEYS, by.kv_heads),
                (&BACKWARD_VALUES, by.kv_heads),
            ] {
                let read = [qkv.all(), dy.all(), log_sum.all(), products.all(), seen];
                self.run(
                    op,
                    &Call {
                        kernel,
                        constants: self.tuning().attention_constants(heads.dim),
                        operands: &[&[d_qkv.all()][..], &read].concat(),
                        numbers: &heads.numbers(start),
                        groups: self.attention_grid(by, 0, n_heads, len),
                    },
                )?;
            }
        }
        Ok(d_qkv)
    }

    /// Uploads the rows that each row sees, if the mask is data.
    fn seen(&self, op: &'static str, by: &Attention<'_>, rows: usize) -> Result<Option<Tensor>> {
        let seen = by.seen(rows / by.context.max(1));
        seen.map(|seen| self.upload_ids(op, &seen)).transpose()
    }

    /// Returns the part of it for a block of rows.
    fn seen_of<'a>(&'a self, seen: &'a Option<Tensor>, block: &Range<usize>) -> Slice<'a> {
        let of_block = |all: &'a Tensor| all.slice(4 * block.start, 4 * block.len());
        seen.as_ref().map_or(self.nothing(), of_block)
    }

    /// Returns blocks of whole samples, for invocations that go through `n_heads` heads.
    fn samples(
        &self,
        op: &'static str,
        qkv: &Tensor,
        heads @ Heads { by, dim }: Heads<'_>,
        n_heads: usize,
    ) -> Result<impl Iterator<Item = Range<usize>> + use<>> {
        // A workgroup reads its windows' rows four at a time, from a multiple of four on.
        let met = heads.window().unwrap_or(by.context) + self.tuning().queries as usize;
        let fours = (met.div_ceil(4) + 1).min(by.context.div_ceil(4));
        // Rounds per head and four rows: one, and two for each of their vectors.
        let quads = dim.div_ceil(4);
        let rounds = n_heads * (1 + fours * (1 + 2 * quads)) + 2 * quads;
        self.check_rounds(op, rounds)?;
        if by.heads > self.max_groups() as usize {
            let (heads, most) = (by.heads, self.max_groups());
            let reason = format!("{heads} heads, and the adapter takes {most}: choose fewer heads");
            return Err(self.failed(op, reason));
        }
        // Each sample takes one workgroup number along one dimension.
        let most = self.max_groups() as usize * by.context;
        let blocks = self.blocks(op, qkv.n_rows(), qkv.width(), by.context)?;
        Ok(blocks.flat_map(move |block| {
            let starts = block.clone().step_by(most);
            starts.map(move |start| start..block.end.min(start + most))
        }))
    }

    /// Returns the grid for `rows` rows of samples, with `n_heads` heads, without `past` rows each.
    fn attention_grid(
        &self,
        by: &Attention<'_>,
        past: usize,
        n_heads: usize,
        rows: usize,
    ) -> [u32; 3] {
        let queries = number(by.context - past).div_ceil(self.tuning().queries);
        [queries, number(n_heads), number(rows / by.context.max(1))]
    }
}

impl Tuning {
    /// Returns the constants for heads with `dim` features.
    pub(super) fn attention_constants(&self, dim: usize) -> Constants {
        let quads = number(dim).div_ceil(4).max(1);
        // Two tiles of rows of a head.
        let row_bytes = 2 * 16 * quads;
        let tile = (self.tile_bytes / row_bytes / 4 * 4).min(MAX_TILE);
        vec![
            ("QUERIES", self.queries),
            ("DIM", number(dim)),
            ("QUADS", quads),
            ("TILE", tile),
            ("UNROLL", self.unroll.into()),
        ]
    }
}

impl<'a> Heads<'a> {
    fn of(qkv: &Tensor, by: &'a Attention<'a>) -> Heads<'a> {
        Heads { by, dim: by.head_dim(qkv.width()) }
    }

    /// Returns the number of rows, up to itself, that a row sees, unless the mask is data.
    fn window(self) -> Option<usize> {
        match self.by.mask {
            Mask::Causal => Some(self.by.context),
            Mask::Window(rows) => Some(rows.min(self.by.context)),
            Mask::Documents(_) | Mask::Lengths(_) => None,
        }
    }

    /// Returns the immediates of a call for the rows from `row` on.
    fn numbers(self, row: usize) -> [u32; 11] {
        let Heads { by, dim } = self;
        let scale = 1.0 / (dim as f32).sqrt();
        let drop = by.dropout.unwrap_or(Dropout::NONE);
        let first = drop.first.wrapping_add(by.weight(row, 0));
        [
            number(by.heads),
            number(by.kv_heads),
            number(by.context),
            scale.to_bits(),
            number(self.window().unwrap_or(0)),
            drop.key[0],
            drop.key[1],
            first as u32,
            (first >> 32) as u32,
            u32::from(drop.threshold()),
            (drop.scale() as f32).to_bits(),
        ]
    }
}
