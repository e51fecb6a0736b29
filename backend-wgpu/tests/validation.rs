//! Vulkan's validation layers report no problems.

use std::sync::Mutex;

use chimera_backend_wgpu::{Options, Target, validated_adapters};
use chimera_core::{device, layers};
use log::{Level, LevelFilter, Log, Metadata, Record};

/// Collects warnings and errors. wgpu also reports a missing validation layer as one.
struct Messages(Mutex<Vec<String>>);

static MESSAGES: Messages = Messages(Mutex::new(Vec::new()));

impl Log for Messages {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Debug
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let message = format!("{}: {}", record.target(), record.args());
        if record.level() <= Level::Warn || message.contains("unable to find layer") {
            self.0.lock().unwrap().push(message);
        }
    }

    fn flush(&self) {}
}

#[test]
fn kernels_are_valid() {
    log::set_logger(&MESSAGES).unwrap();
    log::set_max_level(LevelFilter::Debug);
    let adapters = validated_adapters();
    let adapter = adapters.first().expect("an adapter; Debian has one in mesa-vulkan-drivers");
    for target in [Target::Software, Target::Gpu] {
        let options = Options { target: Some(target), ..Options::default() };
        let device = adapter.open(options).expect("it opens");
        device::conformance::run(&device, 1e-5);
        layers::conformance::run(&device, 1e-5);
    }
    let messages = MESSAGES.0.lock().unwrap();
    assert!(messages.is_empty(), "install vulkan-validationlayers, or:\n{}", messages.join("\n"));
}
