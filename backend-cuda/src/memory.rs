//! Tensor allocation, and copies to and from the host.

use chimera_core::device::Result;

use super::tensor::Cast;
use super::{BLOCK, Download, Driver, Element, Gpu, Tensor, int, long};

/// Elements of bf16 in a cache line.
const ROW: usize = 64;
/// The number of cast rows is rounded up to a multiple of this, with zeros: see `linear.rs`.
const ROWS: usize = 8;

impl<D: Driver> Gpu<D> {
    /// Allocates a tensor, which must be written in full.
    pub(super) fn empty(&self, shape: &[usize], element: Element) -> Result<Tensor<D::Memory>> {
        let memory = self.allocate(shape.iter().product::<usize>() * element.bytes())?;
        Ok(Tensor::of(memory, element, shape.to_vec()))
    }

    /// Allocates an activation, which must be written in full.
    pub(super) fn activation_of(&self, shape: &[usize]) -> Result<Tensor<D::Memory>> {
        self.empty(shape, self.activations)
    }

    /// Allocates a product of `n` columns, `width` of them wanted; if not all, rows are aligned.
    pub(super) fn result_of(
        &self,
        rows: usize,
        width: usize,
        n: usize,
    ) -> Result<Tensor<D::Memory>> {
        if n == width {
            return self.activation_of(&[rows, width]);
        }
        let pitch = n.next_multiple_of(ROW);
        let memory = self.allocate(rows * pitch * self.activations.bytes())?;
        Ok(Tensor { pitch, ..Tensor::of(memory, self.activations, vec![rows, width]) })
    }

    /// Returns `x` with contiguous rows.
    fn packed(&self, x: &Tensor<D::Memory>) -> Result<Tensor<D::Memory>> {
        if x.is_packed() {
            return Ok(x.clone());
        }
        let packed = self.empty(&x.shape, x.element)?;
        let args = [x.read(), packed.write(), int(x.width()), int(x.pitch)];
        self.run("pack_rows", [x.n_rows(), 1], BLOCK, &args)?;
        Ok(packed)
    }

    /// Allocates scratch memory, which must be written before it is read.
    pub(super) fn allocate(&self, bytes: usize) -> Result<D::Memory> {
        let memory = self.queue().driver.allocate(bytes)?;
        if self.poisoned {
            self.queue().driver.fill(&memory, 0xff)?;
        }
        Ok(memory)
    }

    /// Copies numbers of the host to scratch memory.
    pub(super) fn indices(&self, values: &[u32]) -> Result<D::Memory> {
        let memory = self.allocate(size_of_val(values))?;
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        self.queue().driver.write(&memory, &bytes)?;
        Ok(memory)
    }

    pub(super) fn uploaded(&self, shape: &[usize], data: &[f32]) -> Result<Tensor<D::Memory>> {
        let tensor = self.empty(shape, Element::F32)?;
        if tensor.len() != data.len() {
            let reason = format!("{} values for the shape {shape:?}", data.len());
            return Err(self.failed("upload", reason));
        }
        let bytes: Vec<u8> = data.iter().flat_map(|value| value.to_ne_bytes()).collect();
        self.queue().driver.write(&tensor.buffer.memory, &bytes)?;
        Ok(tensor)
    }

    pub(super) fn downloaded(&self, tensor: &Tensor<D::Memory>) -> Result<Vec<f32>> {
        Ok(numbers(tensor.element, &self.bytes_of(tensor)?))
    }

    /// Returns the elements of a tensor, contiguously.
    pub(super) fn bytes_of(&self, tensor: &Tensor<D::Memory>) -> Result<Vec<u8>> {
        let tensor = self.packed(tensor)?;
        let mut bytes = vec![0; tensor.bytes().len()];
        self.queue().driver.read(&tensor.buffer.memory, tensor.bytes().start, &mut bytes)?;
        Ok(bytes)
    }

    /// Uploads an activation in bf16, two elements per word.
    pub(super) fn uploaded_bf16(
        &self,
        shape: &[usize],
        words: &[f32],
    ) -> Result<Tensor<D::Memory>> {
        let tensor = self.empty(shape, Element::Bf16)?;
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        if bytes.len() < tensor.bytes().len() {
            let reason = format!("{} words for bf16 of the shape {shape:?}", words.len());
            return Err(self.failed("upload", reason));
        }
        bytes.truncate(tensor.bytes().len());
        self.queue().driver.write(&tensor.buffer.memory, &bytes)?;
        Ok(tensor)
    }

    pub(super) fn downloaded_all(&self, tensors: &[&Tensor<D::Memory>]) -> Result<Vec<Vec<f32>>> {
        let tensors: Vec<_> = tensors.iter().map(|t| self.packed(t)).collect::<Result<_>>()?;
        let mut bytes: Vec<Vec<u8>> = tensors.iter().map(|t| vec![0; t.bytes().len()]).collect();
        let pieces = tensors.iter().zip(&mut bytes).map(|(tensor, into)| Download {
            memory: &tensor.buffer.memory,
            start: tensor.bytes().start,
            into,
        });
        self.queue().driver.read_all(&mut pieces.collect::<Vec<_>>())?;
        Ok(tensors
            .iter()
            .zip(&bytes)
            .map(|(tensor, bytes)| numbers(tensor.element, bytes))
            .collect())
    }

    pub(super) fn zeroed(&self, shape: &[usize]) -> Result<Tensor<D::Memory>> {
        let tensor = self.empty(shape, Element::F32)?;
        self.queue().driver.fill(&tensor.buffer.memory, 0)?;
        Ok(tensor)
    }

    pub(super) fn view_rows(
        &self,
        tensor: &Tensor<D::Memory>,
        start: usize,
        len: usize,
    ) -> Tensor<D::Memory> {
        assert!(start + len <= tensor.n_rows(), "rows {start} + {len} of {:?}", tensor.shape);
        let mut view = tensor.clone();
        view.start += start * tensor.pitch;
        view.shape[0] = len;
        view
    }

    /// Returns the elements of a tensor, whose rows are contiguous, in another shape.
    pub(super) fn reshaped(
        &self,
        tensor: &Tensor<D::Memory>,
        shape: &[usize],
    ) -> Tensor<D::Memory> {
        let n: usize = shape.iter().product();
        assert!(tensor.is_packed() && n == tensor.len(), "{tensor:?} as {shape:?}");
        let pitch = shape.iter().skip(1).product();
        Tensor { shape: shape.to_vec(), pitch, ..tensor.clone() }
    }

    /// Returns `tensor` in memory of this device.
    pub(super) fn imported(&self, tensor: Tensor<D::Memory>) -> Result<Tensor<D::Memory>> {
        Ok(match self.queue().driver.peer_copy(&tensor.buffer.memory, tensor.bytes())? {
            Some(memory) => Tensor::of(memory, tensor.element, tensor.shape),
            None => tensor,
        })
    }

    /// Calls [`cast`](Self::cast) if needed, for products and the loss: rows may lie apart.
    pub(super) fn matrix(&self, x: &Tensor<D::Memory>) -> Result<Tensor<D::Memory>> {
        if x.element == self.activations { Ok(x.clone()) } else { self.cast(x) }
    }

    /// Returns `x` as an activation. A cast is kept until the memory of `x` is written to.
    pub(super) fn cast(&self, x: &Tensor<D::Memory>) -> Result<Tensor<D::Memory>> {
        if x.element == self.activations {
            return self.packed(x);
        }
        if x.start > 0 {
            let cast = self.activation_of(&x.shape)?;
            self.convert(x, &cast, x.len())?;
            return Ok(cast);
        }
        let mut kept = x.buffer.cast();
        if let Some(cast) = kept.as_ref().filter(|cast| cast.len >= x.len()) {
            let buffer = cast.buffer.clone();
            return Ok(Tensor { buffer, element: self.activations, ..x.clone() });
        }
        let n = x.n_rows().next_multiple_of(ROWS) * x.width();
        let memory = self.allocate(n * self.activations.bytes())?;
        let cast = Tensor::of(memory, self.activations, x.shape.clone());
        self.convert(x, &cast, n)?;
        *kept = Some(Cast { buffer: cast.buffer.clone(), len: x.len() });
        Ok(cast)
    }

    /// Returns a weight as an operand of products.
    pub(super) fn weight(&self, w: &Tensor<D::Memory>) -> Result<Weight<D::Memory>> {
        let cast = self.cast(w)?;
        // A part of a larger tensor is followed by the next part, not by zeros.
        let is_whole = w.buffer.cast().as_ref().is_some_and(|kept| kept.len == w.len());
        let n = w.n_rows();
        let n_rows = if w.start == 0 && is_whole && w.element != cast.element {
            n.next_multiple_of(ROWS)
        } else {
            n
        };
        Ok(Weight { cast, n_rows })
    }

    pub(super) fn wide(&self, x: &Tensor<D::Memory>) -> Result<Tensor<D::Memory>> {
        if x.element == Element::F32 {
            return Ok(x.clone());
        }
        let x = self.packed(x)?;
        let wide = self.empty(&x.shape, Element::F32)?;
        let n = x.len();
        self.run_each("from_activation", n, &[x.read(), wide.write(), long(n)])?;
        Ok(wide)
    }

    /// Writes `x` and then zeros, `n` elements in all.
    pub(super) fn convert(
        &self,
        x: &Tensor<D::Memory>,
        into: &Tensor<D::Memory>,
        n: usize,
    ) -> Result<()> {
        self.run_each("to_activation", n, &[x.read(), into.write(), long(x.len()), long(n)])
    }
}

pub(super) struct Weight<M> {
    pub(super) cast: Tensor<M>,
    /// Number of rows, including the padding rows of zeros.
    pub(super) n_rows: usize,
}

fn numbers(element: Element, bytes: &[u8]) -> Vec<f32> {
    match element {
        Element::F32 => bytes.as_chunks().0.iter().map(|b| f32::from_ne_bytes(*b)).collect(),
        Element::Bf16 => {
            let wide = |b: &[u8; 2]| f32::from_bits(u32::from(u16::from_ne_bytes(*b)) << 16);
            bytes.as_chunks().0.iter().map(wide).collect()
        }
    }
}
