//! Graphs of stages, and stages small enough for any place in a graph.

use chimera_engine::device::Result;
use chimera_engine::device::reference::{Reference, Tensor};
use chimera_engine::stage::{
    Branched, Data, DynBranched, DynSizes, DynSplittable, Init, Micro, Output, Param, Sizes,
    Splittable, Stage,
};
use chimera_schedule::graph::StageGraph;
use chimera_schedule::ids::StageId;

/// A chain whose stages also feed their counterparts from the other end, as in a U-Net.
pub(crate) fn skips(n: u16) -> StageGraph {
    let skips = (0..n).map(|s| (s, n - 1 - s)).filter(|(from, to)| from + 1 < *to);
    graph(n, &[0], chain(0..n).chain(skips), &[n - 1])
}

/// A chain whose second half takes the output of the first half, and also starts with samples of
/// its own.
pub(crate) fn encoder_decoder(n: u16) -> StageGraph {
    let half = n / 2;
    let crosses = (half + 1..n).map(|to| (half - 1, to));
    graph(n, &[0, half], chain(0..half).chain(chain(half..n)).chain(crosses), &[n - 1])
}

/// Two chains that the last stage joins.
pub(crate) fn towers(n: u16) -> StageGraph {
    let (half, last) = (n / 2, n - 1);
    let joins = [(half - 1, last), (last - 1, last)];
    graph(n, &[0, half], chain(0..half).chain(chain(half..last)).chain(joins), &[last])
}

/// A chain with a loss at every other stage.
pub(crate) fn exits(n: u16) -> StageGraph {
    let losses: Vec<u16> = (0..n).filter(|s| (n - 1 - s).is_multiple_of(2)).collect();
    graph(n, &[0], chain(0..n), &losses)
}

/// All graphs of `n` stages with their names. `n` is at least 4.
pub(crate) fn all(n: u16) -> [(&'static str, StageGraph); 4] {
    [
        ("skips", skips(n)),
        ("encoder-decoder", encoder_decoder(n)),
        ("towers", towers(n)),
        ("exits", exits(n)),
    ]
}

fn chain(stages: std::ops::Range<u16>) -> impl Iterator<Item = (u16, u16)> {
    (stages.start + 1..stages.end).map(|to| (to - 1, to))
}

fn graph(
    n: u16,
    sources: &[u16],
    edges: impl Iterator<Item = (u16, u16)>,
    losses: &[u16],
) -> StageGraph {
    StageGraph::new(n.into(), sources, &edges.collect::<Vec<_>>(), losses).expect("a graph")
}

/// `y = tanh(z w)` on rows of two numbers, where `z` is a weighted sum of the inputs; a loss is the
/// squared error of `y v`. Every third stage gives each edge a different multiple of `y`.
pub(crate) struct Node {
    id: u16,
    params: Vec<Param>,
    n_inputs: usize,
    n_outputs: usize,
    has_loss: bool,
}

pub(crate) struct Saved {
    z: Tensor,
    w: Tensor,
    y: Tensor,
    /// For a loss, the weights `v` that multiply `y`, and the gradient of the product.
    of_loss: Option<(Tensor, Tensor)>,
}

impl Node {
    pub(crate) fn of(graph: &StageGraph, id: StageId) -> Node {
        let has_loss = graph.has_loss(id);
        let param = |name: &str| Param::new(format!("{name}.{}", id.0), [2, 2], Init::Uniform(0.9));
        let mut params = vec![param("w")];
        params.extend(has_loss.then(|| param("v")));
        Node {
            id: id.0,
            params,
            n_inputs: graph.inputs(id).len(),
            n_outputs: graph.outputs(id).len() - usize::from(has_loss),
            has_loss,
        }
    }

    /// The stage with frozen weights.
    pub(crate) fn frozen(mut self) -> Node {
        self.params.iter_mut().for_each(|param| param.frozen = true);
        self
    }

    /// The weight of an input, an output or the loss.
    fn share(&self, edge: usize) -> f64 {
        1.0 / (1.0 + edge as f64 + 0.1 * f64::from(self.id))
    }
}

impl Stage for Node {
    type Tensor = Tensor;
    type Item = u32;
    type Saved = Saved;
    /// Gradients of the weights.
    type Deferred = Vec<Tensor>;

    fn params(&self) -> &[Param] {
        &self.params
    }

    fn forward(
        &self,
        w: &[Tensor],
        micro: &Micro<'_>,
        x: Option<Tensor>,
    ) -> Result<(Output<Tensor>, Saved)> {
        let (mut outputs, saved) = self.forward_edges(w, micro, x.into_iter().collect())?;
        assert_eq!(outputs.len(), 1, "a stage of a chain");
        Ok((outputs.remove(0), saved))
    }

    fn backward_input(
        &self,
        w: &[Tensor],
        micro: &Micro<'_>,
        saved: Saved,
        dy: Tensor,
    ) -> Result<(Option<Tensor>, Vec<Tensor>)> {
        let (mut dx, gradients) = self.backward_input_edges(w, micro, saved, vec![dy])?;
        assert!(dx.len() <= 1, "a stage of a chain");
        Ok((dx.pop(), gradients))
    }

    fn backward_weight(
        &self,
        _: &Micro<'_>,
        gradients: Vec<Tensor>,
        into: &mut [Tensor],
    ) -> Result<()> {
        into.iter_mut().zip(&gradients).for_each(|(into, g)| add(into, g, 1.0));
        Ok(())
    }

    fn branched(&self) -> Option<&DynBranched<'_, Self>> {
        Some(self)
    }

    fn splittable(&self) -> Option<&DynSplittable<'_, Self>> {
        if self.id.is_multiple_of(2) { Some(self) } else { None }
    }

    fn sizes(&self) -> Option<&DynSizes<'_, Self>> {
        Some(self)
    }
}

impl Branched for Node {
    fn forward_edges(
        &self,
        w: &[Tensor],
        micro: &Micro<'_>,
        inputs: Vec<Tensor>,
    ) -> Result<(Vec<Output<Tensor>>, Saved)> {
        assert_eq!(inputs.len(), self.n_inputs, "an activation for each edge");
        let numbers = |ids: &[u32]| {
            let data: Vec<f64> = ids.iter().map(|id| f64::from(*id) / 10.0 - 0.5).collect();
            Tensor { shape: vec![data.len() / 2, 2], data }
        };
        // A source begins with the samples; others have as many rows.
        let mut z = numbers(micro.input);
        if self.n_inputs > 0 {
            z.data.fill(0.0);
        }
        inputs.iter().enumerate().for_each(|(edge, x)| add(&mut z, x, self.share(edge)));
        let mut y = product(&z, &w[0], false);
        y.data.iter_mut().for_each(|y| *y = y.tanh());
        let activation = |edge| Output::Activation(times(&y, 1.0 + edge as f64));
        let n_given =
            if self.has_output_per_edge() { self.n_outputs } else { 1.min(self.n_outputs) };
        let mut outputs: Vec<_> = (0..n_given).map(activation).collect();
        let mut of_loss = None;
        if self.has_loss && micro.target.is_empty() {
            outputs.push(Output::Activation(product(&y, &w[1], false)));
        } else if self.has_loss {
            let mut errors = product(&y, &w[1], false);
            add(&mut errors, &numbers(micro.target), -1.0);
            let scale = self.share(0) * micro.loss_scale;
            let loss = scale * errors.data.iter().map(|e| e * e).sum::<f64>();
            let loss = Tensor { shape: vec![1], data: vec![loss] };
            outputs.push(Output::Loss { loss, grad: times(&errors, 2.0 * scale) });
            of_loss = Some((w[1].clone(), times(&errors, 2.0 * scale)));
        }
        Ok((outputs, Saved { z, w: w[0].clone(), y, of_loss }))
    }

    fn backward_input_edges(
        &self,
        _: &[Tensor],
        _: &Micro<'_>,
        saved: Saved,
        mut gradients: Vec<Tensor>,
    ) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
        let Saved { z, w, y, of_loss } = saved;
        let mut of_weights = Vec::new();
        let mut dz = Tensor::zeros(&y.shape);
        if let Some((v, _)) = &of_loss {
            let d_error = gradients.pop().expect("the loss's gradient");
            add(&mut dz, &product(&d_error, v, true), 1.0);
            of_weights.push(outer(&y, &d_error));
        }
        gradients.iter().enumerate().for_each(|(edge, dy)| add(&mut dz, dy, 1.0 + edge as f64));
        dz.data.iter_mut().zip(&y.data).for_each(|(dz, y)| *dz *= 1.0 - y * y);
        of_weights.insert(0, outer(&z, &dz));
        let dz_in = product(&dz, &w, true);
        let dx = (0..self.n_inputs).map(|edge| times(&dz_in, self.share(edge))).collect();
        Ok((dx, of_weights))
    }

    fn has_output_per_edge(&self) -> bool {
        self.id.is_multiple_of(3)
    }
}

impl Splittable for Node {
    fn split_saved(&self, saved: Saved, parts: usize) -> Result<Vec<Saved>> {
        let cut = |tensor: &Tensor, part: usize| {
            let len = tensor.data.len() / parts;
            let data = tensor.data[part * len..][..len].to_vec();
            Tensor { shape: vec![len / 2, 2], data }
        };
        let part = |part| Saved {
            z: cut(&saved.z, part),
            w: saved.w.clone(),
            y: cut(&saved.y, part),
            of_loss: saved.of_loss.as_ref().map(|(v, errors)| (v.clone(), cut(errors, part))),
        };
        Ok((0..parts).map(part).collect())
    }
}

impl Sizes for Node {
    fn input_shape(&self, samples: usize) -> Option<Vec<usize>> {
        Some(vec![samples, 2])
    }

    fn output_shape(&self, samples: usize) -> Option<Vec<usize>> {
        Some(vec![samples, 2])
    }
}

/// A node of a chain, without the functions for graphs.
pub(crate) struct Linear(pub(crate) Node);

impl Stage for Linear {
    type Tensor = Tensor;
    type Item = u32;
    type Saved = Saved;
    type Deferred = Vec<Tensor>;

    fn params(&self) -> &[Param] {
        self.0.params()
    }

    fn forward(
        &self,
        w: &[Tensor],
        micro: &Micro<'_>,
        x: Option<Tensor>,
    ) -> Result<(Output<Tensor>, Saved)> {
        self.0.forward(w, micro, x)
    }

    fn backward_input(
        &self,
        w: &[Tensor],
        micro: &Micro<'_>,
        saved: Saved,
        dy: Tensor,
    ) -> Result<(Option<Tensor>, Vec<Tensor>)> {
        self.0.backward_input(w, micro, saved, dy)
    }

    fn backward_weight(
        &self,
        micro: &Micro<'_>,
        gradients: Vec<Tensor>,
        into: &mut [Tensor],
    ) -> Result<()> {
        self.0.backward_weight(micro, gradients, into)
    }
}

/// `into += share * x`.
fn add(into: &mut Tensor, x: &Tensor, share: f64) {
    assert_eq!(into.shape, x.shape);
    into.data.iter_mut().zip(&x.data).for_each(|(into, x)| *into += share * x);
}

fn times(x: &Tensor, factor: f64) -> Tensor {
    Tensor { shape: x.shape.clone(), data: x.data.iter().map(|x| factor * x).collect() }
}

/// `a b` for rows of two numbers, with `b` as it is or transposed.
fn product(a: &Tensor, b: &Tensor, is_transposed: bool) -> Tensor {
    let at = |i: usize, j: usize| if is_transposed { b.data[2 * j + i] } else { b.data[2 * i + j] };
    let row = |row: &[f64]| [0, 1].map(|j| row[0] * at(0, j) + row[1] * at(1, j));
    Tensor { shape: a.shape.clone(), data: a.data.chunks(2).flat_map(row).collect() }
}

/// `a` transposed, times `b`.
fn outer(a: &Tensor, b: &Tensor) -> Tensor {
    let mut sum = Tensor::zeros(&[2, 2]);
    for (a, b) in a.data.chunks(2).zip(b.data.chunks(2)) {
        (0..4).for_each(|i| sum.data[i] += a[i / 2] * b[i % 2]);
    }
    sum
}

/// Rows of two digits, and two digits to predict.
pub(crate) struct Pairs;

impl Data for Pairs {
    fn sample(
        &self,
        step: u64,
        sample: u64,
        input: &mut Vec<u32>,
        target: &mut Vec<u32>,
    ) -> std::io::Result<()> {
        let digit = |i: u64| ((step * 31 + sample * 7 + i * i * 3) % 11) as u32;
        input.extend([digit(1), digit(2)]);
        target.extend([digit(3), digit(5)]);
        Ok(())
    }

    fn n_targets(&self) -> usize {
        2
    }
}

pub(crate) fn nodes(graph: &StageGraph) -> Vec<Node> {
    graph.stages().map(|id| Node::of(graph, id)).collect()
}

/// The device of all these tests.
pub(crate) const DEVICE: Reference = Reference;
