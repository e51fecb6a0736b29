use chimera_core::stage::Init;

use super::*;

#[test]
fn stages_that_share_tensors_are_found_by_their_names() {
    let param = |name: &str, tied| Param { tied, ..Param::new(name, [2], Init::Zeros) };
    let mut params = vec![
        vec![param("a", true), param("b", true)],
        vec![param("alone", true)],
        vec![param("b", true), param("own", false), param("a", true)],
    ];
    let found = ties(&params);
    assert_eq!(found, [[StageId(0), StageId(2)]]);
    check_ties(&params, &found).unwrap();
    params[2].push(param("c", true));
    let refusal = check_ties(&params, &ties(&params)).unwrap_err().to_string();
    assert!(refusal.starts_with("stage 0 and stage 2 share tensors, but not `c`"), "{refusal}");
}
