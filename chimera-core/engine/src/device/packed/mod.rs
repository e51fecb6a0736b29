//! Matrices of frozen weights in fewer bits than f32: bf16, int8, and NF4.
//!
//! Each linear map of a matrix is packed by itself, as an `[outputs, inputs]` matrix, so that its
//! values are those of the packages that quantise layer by layer. All numbers are little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 4 each | code of the format, rows, columns, 1 if inputs come first, number of maps, outputs of each |
//! | by map | codes, then codes of scales, then scales |
//! | 0 to 3 | padding to whole words |

mod dynamic_map;
mod int8;
mod nf4;
#[cfg(test)]
mod tests;
mod words;

use chimera_schedule::named_values;

use super::{Dtype, Elements};
pub(super) use words::values;

named_values! {
    /// The format in which matrices of frozen weights are held.
    #[derive(Default)]
    pub enum WeightFormat: "frozen-weights" {
        /// f32, as all other weights.
        #[default]
        F32 = "f32",
        /// f32 rounded to its upper half.
        Bf16 = "bf16",
        /// 8 bits, with the absolute maximum of each output: `code * scale / 127`.
        Int8 = "int8",
        /// 4 bits of normal quantiles, with the absolute maximum of each 64 weights.
        Nf4 = "nf4",
        /// NF4 with 8 bits for each absolute maximum, quantised in blocks of 256.
        Nf4Double = "nf4-double",
    }
}

/// The packing of a matrix: its format, and the outputs of the linear maps that lie side by side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packing {
    /// Format of the elements; not f32.
    pub format: WeightFormat,
    /// Outputs of each linear map.
    pub maps: Vec<usize>,
}

/// The shape of a matrix `[rows, columns]`, which has its inputs or its outputs first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MatrixShape {
    /// Extents.
    pub shape: [usize; 2],
    /// Whether rows are inputs.
    pub inputs_first: bool,
}

/// A packed matrix, read from its bytes.
#[derive(Debug)]
pub struct Packed<'b> {
    /// Its format.
    pub format: WeightFormat,
    /// Its shape.
    pub matrix: MatrixShape,
    /// Its linear maps.
    pub maps: Vec<PackedMap<'b>>,
}

/// A packed linear map, of `outputs` rows of `inputs` elements.
#[derive(Clone, Copy, Debug)]
pub struct PackedMap<'b> {
    /// Number of rows.
    pub outputs: usize,
    /// Elements of a row.
    pub inputs: usize,
    format: WeightFormat,
    codes: &'b [u8],
    scale_codes: &'b [u8],
    scales: &'b [u8],
}

/// Bytes of a number in the header, and of a scale.
const WORD: usize = 4;
/// Numbers of the header before the outputs of the maps.
const N_FIXED: usize = 5;

impl MatrixShape {
    fn inputs(self) -> usize {
        self.shape[usize::from(!self.inputs_first)]
    }

    fn outputs(self) -> usize {
        self.shape[usize::from(self.inputs_first)]
    }

    /// Returns the place of an element in row-major order.
    fn place(self, output: usize, input: usize) -> usize {
        let (row, column) = if self.inputs_first { (input, output) } else { (output, input) };
        row * self.shape[1] + column
    }
}

impl Packing {
    /// Bytes of a packed matrix.
    pub fn n_bytes(&self, matrix: MatrixShape) -> usize {
        let of_map = |outputs: &usize| -> usize {
            extents(self.format, *outputs, matrix.inputs()).into_iter().sum()
        };
        let maps: usize = self.maps.iter().map(of_map).sum();
        (WORD * (N_FIXED + self.maps.len()) + maps).next_multiple_of(WORD)
    }

    /// Packs values, row-major.
    pub fn pack(&self, matrix: MatrixShape, values: &[f32]) -> Elements {
        let [rows, columns] = matrix.shape;
        let fixed =
            [self.format.code(), rows, columns, matrix.inputs_first.into(), self.maps.len()];
        let mut bytes = Vec::with_capacity(self.n_bytes(matrix));
        for number in fixed.iter().chain(&self.maps) {
            bytes.extend((*number as u32).to_le_bytes());
        }
        let (mut first, inputs) = (0, matrix.inputs());
        for outputs in &self.maps {
            let of_row = |output| (0..inputs).map(move |input| values[matrix.place(output, input)]);
            let map: Vec<f32> = (first..first + outputs).flat_map(of_row).collect();
            match self.format {
                WeightFormat::F32 => {}
                WeightFormat::Bf16 => {
                    let words = Dtype::Bf16.of_f32(map);
                    let halves = words.iter().flat_map(|word| word.to_bits().to_le_bytes());
                    bytes.extend(halves.take(2 * outputs * inputs));
                }
                WeightFormat::Int8 => int8::pack(&map, inputs, &mut bytes),
                WeightFormat::Nf4 => nf4::pack(&map, &mut bytes),
                WeightFormat::Nf4Double => nf4::pack_double(&map, &mut bytes),
            }
            first += outputs;
        }
        bytes.resize(self.n_bytes(matrix), 0);
        Elements { dtype: Dtype::Packed, words: Dtype::words(&bytes).collect() }
    }
}

impl WeightFormat {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        Self::ALL[self.code()].0
    }

    fn code(self) -> usize {
        self as usize
    }
}

impl<'b> Packed<'b> {
    /// Reads a packed matrix; `None` if the bytes are not one, or are not whole.
    pub fn read(bytes: &'b [u8]) -> Option<Packed<'b>> {
        let number = |nth: usize| {
            let word = bytes.get(nth * WORD..)?.first_chunk()?;
            Some(u32::from_le_bytes(*word) as usize)
        };
        let (_, format) = *WeightFormat::ALL.get(number(0)?)?;
        let shape = [number(1)?, number(2)?];
        let matrix = MatrixShape { shape, inputs_first: number(3)? == 1 };
        // Every element takes half a byte or more.
        let fits = shape[0].checked_mul(shape[1])? <= 2 * bytes.len();
        let n_maps = Some(number(4)?).filter(|n| fits && *n <= bytes.len() / WORD)?;
        let mut rest = bytes.get(WORD * (N_FIXED + n_maps)..)?;
        let (mut maps, mut n_outputs) = (Vec::with_capacity(n_maps), 0);
        for nth in 0..n_maps {
            let outputs = Some(number(N_FIXED + nth)?).filter(|n| *n <= matrix.outputs())?;
            let [codes, scale_codes, scales] = extents(format, outputs, matrix.inputs());
            let mut take = |n: usize| {
                let (taken, others) = rest.split_at_checked(n)?;
                rest = others;
                Some(taken)
            };
            maps.push(PackedMap {
                outputs,
                inputs: matrix.inputs(),
                format,
                codes: take(codes)?,
                scale_codes: take(scale_codes)?,
                scales: take(scales)?,
            });
            n_outputs += outputs;
        }
        let is_whole = rest.len() < WORD && n_outputs == matrix.outputs();
        (is_whole && format != WeightFormat::F32).then_some(Packed { format, matrix, maps })
    }

    /// Returns the outputs of its linear maps, and its format.
    pub fn packing(&self) -> Packing {
        Packing { format: self.format, maps: self.maps.iter().map(|map| map.outputs).collect() }
    }

    /// Returns its values, row-major.
    pub fn values(&self) -> Vec<f32> {
        let inputs = self.matrix.inputs();
        let mut values = vec![0.0; inputs * self.matrix.outputs()];
        let (mut first, mut row) = (0, vec![0.0; inputs]);
        for map in &self.maps {
            for output in 0..map.outputs {
                map.unpack(output * inputs, &mut row);
                for (input, value) in row.iter().enumerate() {
                    values[self.matrix.place(first + output, input)] = *value;
                }
            }
            first += map.outputs;
        }
        values
    }
}

impl PackedMap<'_> {
    /// Writes the elements from `first` on, as `[outputs, inputs]` has them in row-major order.
    #[inline(always)]
    pub fn unpack(&self, first: usize, into: &mut [f32]) {
        match self.format {
            WeightFormat::F32 => {}
            WeightFormat::Bf16 => {
                let halves = &self.codes.as_chunks().0[first..];
                for (x, half) in into.iter_mut().zip(halves) {
                    *x = f32::from_bits(u32::from(u16::from_le_bytes(*half)) << u16::BITS);
                }
            }
            WeightFormat::Int8 => int8::unpack(self.codes, self.scales, self.inputs, first, into),
            WeightFormat::Nf4 => {
                let scale = |block| scale(self.scales, block);
                nf4::unpack(self.codes, scale, first, into);
            }
            WeightFormat::Nf4Double => {
                let scale = |block| nf4::double_scale(self.scale_codes, self.scales, block);
                nf4::unpack(self.codes, scale, first, into);
            }
        }
    }
}

/// Bytes of the codes of a linear map, of the codes of its scales, and of its scales.
fn extents(format: WeightFormat, outputs: usize, inputs: usize) -> [usize; 3] {
    let n = outputs * inputs;
    let n_blocks = n.div_ceil(nf4::BLOCK);
    match format {
        WeightFormat::F32 => [0; 3],
        WeightFormat::Bf16 => [2 * n, 0, 0],
        WeightFormat::Int8 => [n, 0, WORD * outputs],
        WeightFormat::Nf4 => [n.div_ceil(2), 0, WORD * n_blocks],
        WeightFormat::Nf4Double => {
            [n.div_ceil(2), n_blocks, WORD * (n_blocks.div_ceil(nf4::SCALE_BLOCK) + 1)]
        }
    }
}

/// Returns the scale of this number.
#[inline(always)]
fn scale(scales: &[u8], nth: usize) -> f32 {
    f32::from_le_bytes(scales.as_chunks().0[nth])
}

/// Returns the largest absolute value.
fn absolute_maximum(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most, x| most.max(x.abs()))
}
