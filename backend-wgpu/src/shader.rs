//! The kernels, and their pipelines for one device.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

/// Some files of WGSL, one after another.
#[derive(Debug)]
pub(crate) struct Source {
    name: &'static str,
    pub(crate) texts: &'static [&'static str],
}

/// An entry point of a [`Source`]. Its operands are bound in order, the written ones first. Its
/// immediates are the start of each operand within its binding, and then its numbers.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) source: &'static Source,
    pub(crate) entry: &'static str,
    pub(crate) n_written: usize,
    pub(crate) n_read: usize,
    pub(crate) n_numbers: usize,
}

/// Constants at the head of a source, which are also the counts of its repetitions.
pub(crate) type Constants = Vec<(&'static str, u32)>;

macro_rules! sources {
    ($($name:ident $file:literal $(+ $more:literal)*),* $(,)?) => {
        $(pub(crate) static $name: Source = Source {
            name: $file,
            texts: &[
                include_str!("../shaders/common.wgsl"),
                include_str!(concat!("../shaders/", $file, ".wgsl")),
                $(include_str!(concat!("../shaders/", $more, ".wgsl")),)*
            ],
        };)*

        /// Every source.
        #[cfg(test)]
        static ALL: &[&Source] = &[$(&$name),*];
    };
}

sources!(
    ACTIVATION "activation",
    ATTENTION_BACKWARD "attention_backward" + "attention" + "threefry",
    ATTENTION_FORWARD "attention_forward" + "attention" + "threefry",
    CROSS_ENTROPY "cross_entropy",
    DROPOUT "dropout" + "threefry",
    EMBEDDING "embedding",
    LINEAR "linear",
    LINEAR_SUBGROUPS "linear" + "linear_subgroups",
    NORM "norm",
    OPTIMIZER "optimizer",
    POINTWISE "pointwise",
    ROTARY "rotary",
    SUMS "sums",
);

/// The pipelines made so far.
#[derive(Debug, Default)]
pub(crate) struct Pipelines {
    made: Mutex<HashMap<(&'static str, &'static str, Constants), Pipeline>>,
}

/// A compiled kernel.
#[derive(Clone, Debug)]
pub(crate) struct Pipeline {
    pub(crate) pipeline: wgpu::ComputePipeline,
    pub(crate) bindings: wgpu::BindGroupLayout,
}

impl Pipelines {
    /// Returns the pipeline of a kernel, which is made at its first use.
    pub(crate) fn get(
        &self,
        device: &wgpu::Device,
        kernel: &Kernel,
        constants: Constants,
    ) -> Pipeline {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (kernel.source.name, kernel.entry, constants);
        if let Some(pipeline) = made.get(&key) {
            return pipeline.clone();
        }
        let pipeline = Pipeline::new(device, kernel, &key.2);
        made.insert(key, pipeline.clone());
        pipeline
    }
}

impl Pipeline {
    fn new(device: &wgpu::Device, kernel: &Kernel, constants: &Constants) -> Pipeline {
        let label = Some(kernel.entry);
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some(kernel.source.name),
            source: wgpu::ShaderSource::Wgsl(text(kernel.source, constants).into()),
        });
        let n_operands = kernel.n_written + kernel.n_read;
        let entries: Vec<_> = (0..n_operands).map(|i| binding(i, i >= kernel.n_written)).collect();
        let bindings = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label,
            entries: &entries,
        });
        let layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label,
            bind_group_layouts: &[Some(&bindings)],
            immediate_size: 4 * (n_operands + kernel.n_numbers) as u32,
        });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label,
            layout: Some(&layout),
            module: &module,
            entry_point: label,
            // Reading before writing is a bug, which zeros would hide, at the cost of a barrier.
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: None,
        });
        Pipeline { pipeline, bindings }
    }
}

/// Returns the WGSL of a source. Translators bound loops and check indices in them, so compilers do
/// not unroll them and keep arrays in memory. Code that must stay in registers is therefore
/// unrolled in the text. Lines between `// repeat i N` and `// end` are repeated for each number
/// below N, which is a constant or a number, and replaces `{i}`. With a constant `UNROLL` of 0 they
/// become a loop, which compiles sooner on devices with few registers anyway.
fn text(source: &Source, constants: &Constants) -> String {
    let mut text = String::new();
    for (name, value) in constants {
        let _ = writeln!(text, "const {name} = {value}u;"); // writing to a string does not fail
    }
    let whole = source.texts.concat();
    let mut lines = whole.lines();
    while let Some(line) = lines.next() {
        let Some((name, count)) = repetition(line, constants) else {
            text.extend([line, "\n"]);
            continue;
        };
        let body: Vec<&str> = lines.by_ref().take_while(|line| line.trim() != "// end").collect();
        let body = |value: &str| body.join("\n").replace(&format!("{{{name}}}"), value);
        if constants.contains(&("UNROLL", 0)) {
            let each = body(name);
            let _ =
                writeln!(text, "for (var {name} = 0u; {name} < {count}u; {name}++) {{\n{each}\n}}");
            continue;
        }
        for i in 0..count {
            text.extend([&body(&format!("{i}u")), "\n"]);
        }
    }
    text
}

/// Returns the name and count of a repetition that begins in a line.
fn repetition<'a>(line: &'a str, constants: &Constants) -> Option<(&'a str, u32)> {
    let (name, count) = line.trim().strip_prefix("// repeat ")?.split_once(' ')?;
    let constant = constants.iter().find(|(known, _)| *known == count);
    let count = constant.map(|(_, value)| *value).or_else(|| count.parse().ok());
    Some((name, count.unwrap_or_else(|| panic!("{line:?} counts no constant"))))
}

fn binding(index: usize, read_only: bool) -> wgpu::BindGroupLayoutEntry {
    wgpu::BindGroupLayoutEntry {
        binding: index as u32,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer {
            ty: wgpu::BufferBindingType::Storage { read_only },
            has_dynamic_offset: false,
            min_binding_size: None,
        },
        count: None,
    }
}

#[cfg(test)]
mod translated;
