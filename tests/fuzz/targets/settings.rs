//! Any settings file is refused, or its shown settings read back the same.

#![no_main]

use std::fs::write;

use chimera::run::outside::OnDisk;
use chimera::settings::{Config, Layers, OPTIONS};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.toml");
    write(&path, bytes).expect("a file");
    let layers = Layers { config: Some(path.clone()), ..Layers::default() };
    let Ok(config) = layers.resolve(&OnDisk) else { return };
    write(&path, config.to_toml()).expect("a file");
    let again = layers.resolve(&OnDisk).expect("what is shown is read");
    for option in OPTIONS.iter() {
        let value = |config: &Config| config.value(option.name).map(|(value, _)| value.to_string());
        assert_eq!(value(&again), value(&config), "{}", option.name);
    }
});
