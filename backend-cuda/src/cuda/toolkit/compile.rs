//! Compiling the kernels with NVRTC, which needs no GPU, and caching the images.

use std::ffi::{CString, c_char};
use std::path::PathBuf;
use std::{env, fs, process};

use cudarc::nvrtc::result::{self, NvrtcError};
use cudarc::nvrtc::sys;

use super::capability::has_tensor_cores;
use super::libraries::NVRTC;
use crate::{Format, source};

/// Compiles all kernels for a chip (`sm_90`). Returns the image, and the compiler's log of
/// registers, shared memory and spills.
///
/// # Errors
/// If NVRTC is missing, or rejects the kernels.
pub fn compile(chip: &str, format: Format) -> Result<(Vec<u8>, String), String> {
    version()?;
    let source = CString::new(text_of(chip, format)).map_err(|e| e.to_string())?;
    let program = Program(result::create_program(&source, Some(c"chimera.cu")).map_err(said)?);
    // SAFETY: the program was made just now and lives to the end of this function.
    unsafe {
        let compiled = result::compile_program(program.0, &options(chip));
        let log = words(&result::get_program_log(program.0).map_err(said)?);
        compiled.map_err(|e| format!("{}\n{log}", said(e)))?;
        let mut size = 0;
        sys::nvrtcGetCUBINSize(program.0, &mut size).result().map_err(said)?;
        let mut image = vec![0u8; size];
        sys::nvrtcGetCUBIN(program.0, image.as_mut_ptr().cast()).result().map_err(said)?;
        Ok((image, log))
    }
}

/// Returns the result of [`compile`], cached per text and compiler.
pub(crate) fn cached(chip: &str, format: Format) -> Result<Vec<u8>, String> {
    let Some(folder) = folder() else { return Ok(compile(chip, format)?.0) };
    let (major, minor) = version()?;
    let mut hash = blake3::Hasher::new();
    for part in options(chip) {
        hash.update(part.as_bytes()).update(&[0]);
    }
    hash.update(text_of(chip, format).as_bytes());
    let file = folder.join(format!("{major}.{minor}-{}.cubin", hash.finalize().to_hex()));
    if let Some(image) = fs::read(&file).ok().and_then(whole) {
        return Ok(image);
    }
    let (image, _) = compile(chip, format)?;
    // If it cannot be cached, it is compiled again the next time.
    let part = file.with_extension(format!("{}.part", process::id()));
    let kept = fs::create_dir_all(&folder)
        .and_then(|()| fs::write(&part, [&blake3::hash(&image).as_bytes()[..], &*image].concat()))
        .and_then(|()| fs::rename(&part, &file));
    if kept.is_err() {
        let _ = fs::remove_file(&part);
    }
    Ok(image)
}

/// Returns the image of a file that begins with its hash: the driver trusts any image.
fn whole(mut file: Vec<u8>) -> Option<Vec<u8>> {
    let image = file.split_off(file.len().min(blake3::OUT_LEN));
    (blake3::hash(&image).as_bytes()[..] == file).then_some(image)
}

/// Returns the kernels of a chip, `sm_90` or `sm_90a`.
pub(crate) fn text_of(chip: &str, format: Format) -> String {
    let digits: String = chip.chars().filter(char::is_ascii_digit).collect();
    let number = digits.parse().unwrap_or(0);
    source(format, has_tensor_cores((number / 10, number % 10)))
}

/// Returns the compiler's version, major and minor.
pub(crate) fn version() -> Result<(i32, i32), String> {
    NVRTC.require()?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: it writes two ints.
    unsafe { sys::nvrtcVersion(&mut major, &mut minor) }.result().map_err(said)?;
    NVRTC.check(major, &format!("{major}.{minor}"))?;
    Ok((major, minor))
}

struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made by `create_program`, destroyed once.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

fn options(chip: &str) -> [String; 3] {
    [format!("--gpu-architecture={chip}"), "--std=c++17".into(), "--ptxas-options=--verbose".into()]
}

/// Returns the folder for images, in the user's cache.
fn folder() -> Option<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
    Some(cache.join("chimera/kernels"))
}

fn said(e: NvrtcError) -> String {
    format!("NVRTC: {:?}", e.0)
}

fn words(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|b| *b as u8).take_while(|b| *b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::whole;

    #[test]
    fn a_file_that_is_not_whole_is_no_image() {
        let file = [&blake3::hash(b"image").as_bytes()[..], b"image"].concat();
        assert_eq!(whole(file.clone()).as_deref(), Some(&b"image"[..]));
        for cut in [0, 5, 32, file.len() - 1] {
            assert_eq!(whole(file[..cut].to_vec()), None, "{cut} bytes");
        }
    }
}
