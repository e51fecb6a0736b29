//! Vulkan and its validation layers. Machines without a GPU use a software implementation.

use std::path::Path;

use anyhow::{Context, Result};

use crate::command::install;

/// Debian's software Vulkan, its loader, and the layers that validate its use.
const PACKAGES: [&str; 3] = ["mesa-vulkan-drivers", "libvulkan1", "vulkan-validationlayers"];
/// Folders with descriptions of drivers and layers.
const FOLDERS: [&str; 3] = ["/etc/vulkan", "/usr/local/share/vulkan", "/usr/share/vulkan"];
/// The layer that validates the use of Vulkan.
const LAYER: &str = "explicit_layer.d/VkLayer_khronos_validation.json";

/// Installs Vulkan if Debian's packages are available.
pub fn needs() -> Result<()> {
    let is_there = ["icd.d", LAYER].into_iter().all(has);
    if !cfg!(target_os = "linux") || is_there {
        return Ok(());
    }
    install(&PACKAGES).context("Vulkan, or its validation layers, are missing")
}

/// Returns true if such a file or non-empty folder exists.
fn has(name: &str) -> bool {
    FOLDERS.iter().map(|folder| Path::new(folder).join(name)).any(|path| match path.read_dir() {
        Ok(mut files) => files.next().is_some(),
        Err(_) => path.exists(),
    })
}
