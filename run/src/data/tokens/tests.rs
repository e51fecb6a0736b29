use std::fs;

use tempfile::TempDir;

use super::*;

/// Opens files with these contents and returns their ids, or the error without the folder.
fn opened(files: &[(&str, &[u8])], vocab: usize) -> Result<Vec<u32>, String> {
    let folder = TempDir::new().unwrap();
    let paths: Vec<_> = files.iter().map(|(name, _)| folder.path().join(name)).collect();
    for (path, (_, bytes)) in paths.iter().zip(files) {
        fs::write(path, bytes).unwrap();
    }
    let read = || -> Result<Vec<u32>, DataError> {
        let mut tokens = Tokens::open(&paths)?;
        tokens.check(vocab)?;
        let mut ids = Vec::new();
        for at in (0..tokens.len()).step_by(3) {
            tokens.extend(&mut ids, at..tokens.len().min(at + 3)).unwrap();
        }
        Ok(ids)
    };
    read().map_err(|e| e.to_string().replace(&format!("{}/", folder.path().display()), ""))
}

#[test]
fn files_are_read_in_order_at_their_width() {
    let text = opened(&[("b.txt", b"de"), ("a.txt", b"abc")], 256);
    assert_eq!(text, Ok(vec![100, 101, 97, 98, 99]));
    let u16s = opened(&[("a.bin", &[1, 2, 3, 0]), ("b.bin", &[4, 0])], 50257);
    assert_eq!(u16s, Ok(vec![513, 3, 4]));
    assert_eq!(opened(&[("a.u32.bin", &[1, 2, 0, 0])], 50257), Ok(vec![513]));
    let long: Vec<u8> = (0..200_001_u32).map(|i| (i % 251) as u8).collect();
    let ids = opened(&[("long", &long)], 251).unwrap();
    assert_eq!(ids, long.iter().map(|&id| u32::from(id)).collect::<Vec<_>>());
}

#[test]
fn refusals_name_file_and_position() {
    type Case<'a> = (&'a [(&'a str, &'a [u8])], &'a str);
    let mut far = [7; 200_000];
    far[150_000] = 100;
    let cases: [Case; 7] = [
        (&[("a.txt", b"a"), ("b.txt", b"")], "data file b.txt is empty"),
        (
            &[("a.bin", &[0; 5])],
            "data file a.bin has 5 bytes, not a multiple of the 2 bytes of a token id",
        ),
        (
            &[("a.u32.bin", &[0; 6])],
            "data file a.u32.bin has 6 bytes, not a multiple of the 4 bytes of a token id",
        ),
        (
            &[("a.txt", b"a"), ("b.bin", &[0; 2])],
            "data file b.bin holds u16 token ids, but the files before it hold text",
        ),
        (
            &[("a.bin", &[9, 0]), ("b.bin", &[0, 0, 99, 0, 100, 0])],
            "data file b.bin: token 2 has id 100, but the vocabulary has 100 ids: \
             choose vocab 101 or more, or prepare the data with the tokenizer of the model",
        ),
        (
            &[("a.txt", b"abz")],
            "data file a.txt: token 2 has id 122, but the vocabulary has 100 ids: \
             choose vocab 123 or more, or prepare the data with the tokenizer of the model",
        ),
        (
            &[("far", &far)],
            "data file far: token 150000 has id 100, but the vocabulary has 100 ids: \
             choose vocab 101 or more, or prepare the data with the tokenizer of the model",
        ),
    ];
    for (files, refusal) in cases {
        assert_eq!(opened(files, 100), Err(refusal.to_owned()));
    }
}

#[test]
fn missing_files_and_folders_are_refused() {
    let folder = TempDir::new().unwrap();
    let refusal = |path: PathBuf| Tokens::open(&[path]).unwrap_err().to_string();
    assert!(refusal(folder.path().join("none")).contains("No such file"));
    assert!(refusal(folder.path().to_path_buf()).contains("is not a regular file"));
}

/// A sparse file is larger than any memory.
#[test]
fn files_larger_than_memory_are_read_where_they_lie() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("sparse.bin");
    let file = File::create(&path).unwrap();
    if file.set_len(1 << 43).is_ok() {
        let mut tokens = Tokens::open(&[path]).unwrap();
        tokens.check(1 << 16).unwrap();
        let mut ids = Vec::new();
        tokens.extend(&mut ids, (1 << 42) - 5..1 << 42).unwrap();
        assert_eq!(ids, [0; 5]);
    }
}

#[test]
fn files_that_change_are_errors() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("data.bin");
    fs::write(&path, [1, 0, 2, 0]).unwrap();
    let mut tokens = Tokens::open(std::slice::from_ref(&path)).unwrap();
    tokens.check(10).unwrap();
    fs::write(&path, [1, 0, 10, 0]).unwrap();
    let error = tokens.extend(&mut Vec::new(), 0..2).unwrap_err().to_string();
    assert!(error.contains("id 10, but the vocabulary has 10 ids"), "{error}");
    fs::write(&path, [1, 0]).unwrap();
    let error = tokens.extend(&mut Vec::new(), 0..2).unwrap_err().to_string();
    assert!(error.starts_with("cannot read data file "), "{error}");
}
