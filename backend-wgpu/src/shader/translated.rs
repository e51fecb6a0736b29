//! Tests that translate every kernel with every set of constants for Vulkan, Metal and DX12 as wgpu
//! does. They need no adapter.

use naga::back::{hlsl, msl, spv};
use naga::proc::TypeResolution;
use naga::valid::{Capabilities, FunctionInfo, ModuleInfo, ValidationFlags, Validator};
use naga::{AddressSpace, Block, Expression, Function, Handle, Module, Statement, TypeInner};

use super::*;
use crate::layers;
use crate::tuning::{Product, Target, Tuning};

/// Bytes of workgroup memory that every device has.
const STORAGE: u32 = 16 << 10;

#[test]
fn all_kernels_translate_for_all_platforms() {
    for (source, constants) in used() {
        let (module, info) = parsed(source, &constants);
        let named = |what: &str| format!("{} with {constants:?}, {what}", source.name);
        for entry in &module.entry_points {
            let (stage, entry_point) = (entry.stage, entry.name.clone());
            let pipeline = spv::PipelineOptions { shader_stage: stage, entry_point };
            let words = spv::write_vec(&module, &info, &spv::Options::default(), Some(&pipeline));
            words.unwrap_or_else(|e| panic!("{}: {e}", named(&entry.name)));
        }
        let options = msl::Options { lang_version: (2, 4), ..msl::Options::default() };
        let metal = msl::write_string(&module, &info, &options, &msl::PipelineOptions::default());
        let (_, written) = metal.unwrap_or_else(|e| panic!("{}: {e}", named("Metal")));
        for (entry, name) in module.entry_points.iter().zip(written.entry_point_names) {
            name.unwrap_or_else(|e| panic!("{}: {e}", named(&entry.name)));
        }
        let shader_model = hlsl::ShaderModel::V6_0;
        let target = Some(hlsl::BindTarget::default());
        let options = hlsl::Options {
            shader_model,
            immediates_target: target,
            special_constants_binding: target, // the number of workgroups
            ..hlsl::Options::default()
        };
        let (mut text, pipeline) = (String::new(), hlsl::PipelineOptions::default());
        let mut writer = hlsl::Writer::new(&mut text, &options, &pipeline);
        let written = writer.write(&module, &info, None);
        let written = written.unwrap_or_else(|e| panic!("{}: {e}", named("DX12")));
        for (entry, name) in module.entry_points.iter().zip(written.entry_point_names) {
            name.unwrap_or_else(|e| panic!("{}: {e}", named(&entry.name)));
        }
    }
}

/// A write to a component of a vector may touch the whole vector, and does on Metal and DX12. In
/// workgroup memory its other components may be another invocation's.
#[test]
fn vectors_of_workgroup_memory_are_written_whole() {
    for (source, constants) in used() {
        let (module, info) = parsed(source, &constants);
        let partial = partial_writes(&module, &info);
        assert!(partial.is_empty(), "{} with {constants:?}: in {partial:?}", source.name);
    }
}

#[test]
fn a_write_to_a_component_is_found() {
    const TEXT: &str = "
        var<workgroup> tile: array<vec4<f32>, 8>;
        var<workgroup> plain: array<f32, 8>;
        @compute @workgroup_size(8)
        fn whole(@builtin(local_invocation_index) lane: u32) {
            tile[lane] = vec4(1.0);
            plain[lane] = 1.0;
            var own: vec4<f32>;
            own[lane % 4u] = 1.0;
        }
        @compute @workgroup_size(8)
        fn constant(@builtin(local_invocation_index) lane: u32) {
            if lane > 1u { tile[lane].y = 1.0; }
        }
        @compute @workgroup_size(8)
        fn computed(@builtin(local_invocation_index) lane: u32) {
            loop { tile[lane / 4u][lane % 4u] += 1.0; break; }
        }";
    let (module, info) = validated(naga::front::wgsl::parse_str(TEXT).expect("it parses"));
    assert_eq!(partial_writes(&module, &info), ["constant", "computed"]);
}

#[test]
fn repetitions_are_written_out() {
    static SOURCE: Source =
        Source { name: "some", texts: &["a\n  // repeat i N\n  b[{i}]\n  c{i}\n  // end\nd\n"] };
    let expected = "const N = 2u;\na\n  b[0u]\n  c0u\n  b[1u]\n  c1u\nd\n";
    assert_eq!(text(&SOURCE, &vec![("N", 2)]), expected);
    let looped = text(&SOURCE, &vec![("N", 2), ("UNROLL", 0)]);
    assert!(
        looped.ends_with("a\nfor (var i = 0u; i < 2u; i++) {\n  b[i]\n  ci\n}\nd\n"),
        "{looped}"
    );
}

/// Returns every source with all constants that the layers may pass it.
fn used() -> Vec<(&'static Source, Constants)> {
    let mut used = Vec::new();
    for target in [Target::Software, Target::Gpu] {
        used.extend(layers::sources(&Tuning::sized(target, Product::Registers.into(), STORAGE)));
    }
    for source in ALL {
        assert!(used.iter().any(|(used, _)| used.name == source.name), "{}", source.name);
    }
    used
}

fn parsed(source: &Source, constants: &Constants) -> (Module, ModuleInfo) {
    let text = text(source, constants);
    let module = naga::front::wgsl::parse_str(&text);
    validated(module.unwrap_or_else(|e| panic!("{}: {}", source.name, e.emit_to_string(&text))))
}

fn validated(module: Module) -> (Module, ModuleInfo) {
    let capabilities = Capabilities::IMMEDIATES | Capabilities::SUBGROUP;
    let info = Validator::new(ValidationFlags::all(), capabilities).validate(&module);
    (module, info.expect("it is valid"))
}

/// Returns the functions that write components of vectors in workgroup memory.
fn partial_writes(module: &Module, info: &ModuleInfo) -> Vec<String> {
    let functions = module.functions.iter();
    let functions = functions.map(|(at, f)| (f.name.clone().unwrap_or_default(), f, &info[at]));
    let entries = module.entry_points.iter().enumerate();
    let entries = entries.map(|(i, e)| (e.name.clone(), &e.function, info.get_entry_point(i)));
    let writes_partly = |f: &Function, of: &FunctionInfo| {
        stores(&f.body).into_iter().any(|to| is_component(module, f, of, to))
    };
    functions.chain(entries).filter(|(_, f, of)| writes_partly(f, of)).map(|(n, ..)| n).collect()
}

/// Returns the destinations of stores.
fn stores(block: &Block) -> Vec<Handle<Expression>> {
    let within = |statement: &Statement| match statement {
        Statement::Store { pointer, .. } => vec![*pointer],
        Statement::Block(block) => stores(block),
        Statement::If { accept, reject, .. } => [stores(accept), stores(reject)].concat(),
        Statement::Switch { cases, .. } => cases.iter().flat_map(|c| stores(&c.body)).collect(),
        Statement::Loop { body, continuing, .. } => [stores(body), stores(continuing)].concat(),
        _ => Vec::new(),
    };
    block.iter().flat_map(within).collect()
}

fn is_component(
    module: &Module,
    function: &Function,
    info: &FunctionInfo,
    to: Handle<Expression>,
) -> bool {
    let (Expression::Access { base, .. } | Expression::AccessIndex { base, .. }) =
        function.expressions[to]
    else {
        return false;
    };
    let inner = |resolution: &TypeResolution| resolution.inner_with(&module.types).clone();
    match inner(&info[base].ty) {
        TypeInner::Pointer { base, space: AddressSpace::WorkGroup } => {
            matches!(module.types[base].inner, TypeInner::Vector { .. })
        }
        TypeInner::ValuePointer { size, space: AddressSpace::WorkGroup, .. } => size.is_some(),
        _ => false,
    }
}
