//! Tensors that stages share.

use super::*;

#[test]
fn a_tie_is_one_in_all_its_stages() {
    let tied = || vec![vec![StageId(0), StageId(3)]];
    fn tie(id: StageId, params: &mut [Param], name: &str) {
        if [0, 3].contains(&id.index()) {
            params[0].tied = true;
            params[0].name = name.into();
        }
    }
    let names = fault_of_params(tied(), |_, id, params| {
        tie(id, params, &format!("tied.{}", id.index()));
    });
    let nothing = "`tied.0` of stage 0 is tied, and stage 3, with which it is tied, has no tied";
    says(&names, Class::Usage, &[nothing]);
    let shapes = fault_of_params(tied(), |_, id, params| {
        tie(id, params, "tied");
        if id == StageId(3) {
            params[0].shape = vec![1, 1];
        }
    });
    says(&shapes, Class::Usage, &["`tied` is of [1] in stage 0 and of [1, 1] in stage 3"]);
    let inits = fault_of_params(tied(), |_, id, params| {
        tie(id, params, "tied");
        if id == StageId(3) {
            params[0].init = Init::Zeros;
        }
    });
    says(&inits, Class::Mismatch, &["`tied` begins with other weights"]);
    let trained = train(Wrong::Nothing, training(), tied(), |_, id| {
        let mut stage = bend(id, Wrong::Nothing);
        tie(id, &mut stage.params, "tied");
        Ok(stage)
    });
    assert_eq!(trained.expect("tied").reports.len(), 3);
}

#[test]
fn a_tensor_that_calls_itself_tied_and_is_in_no_tie_is_of_its_stage() {
    let trained = |is_tied: bool| {
        let trained = train(Wrong::Nothing, training(), vec![vec![StageId(2)]], |_, id| {
            let mut stage = bend(id, Wrong::Nothing);
            stage.params[0].tied = is_tied;
            Ok(stage)
        });
        trained.expect("trained").reports.last().map(|report| report.loss)
    };
    assert_eq!(trained(true), trained(false));
    let forgotten = fault_of_params(Vec::new(), |_, id, params| {
        params[0].tied = true;
        if [0, 3].contains(&id.index()) {
            params[0].name = "tied".into();
        }
    });
    let both = "a parameter of stage 0 and one of stage 3 are both `tied`";
    says(&forgotten, Class::Usage, &[both, "name them in `Lowering::tied`"]);
}

#[test]
fn a_stage_is_in_one_tie() {
    let timetable = find("1f1b").expect("known").timetable(&Shape::new(4, 4)).expect("fits");
    let tied = vec![vec![StageId(0), StageId(3)], vec![StageId(3), StageId(1)]];
    let refusal = lower(&timetable, &Lowering { tied, ..Lowering::default() });
    let refusal = refusal.expect_err("refused").to_string();
    assert!(refusal.contains("stage 3 is in two sets of tied stages"), "{refusal}");
}
