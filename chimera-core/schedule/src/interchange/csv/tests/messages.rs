//! Files with messages, and files of other projects.

use super::*;

/// Two ranks with one stage each, as PyTorch lowers them.
const MESSAGES: &str = "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n\
                        1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n";
/// An order of PyTorch's tests, in the letters of earlier versions.
const ZB1P: &str = include_str!("zb1p_comms.csv");

/// Writes the letters of today for the older ones.
fn in_todays_letters(text: &str) -> String {
    let cell = |cell: &str| {
        let is_backward = |letter: &str| cell.contains(letter) && !cell.contains('_');
        match (is_backward("BW"), is_backward("B")) {
            (true, _) => cell.replace("BW", "B"),
            (_, true) => cell.replace('B', "I"),
            _ => cell.to_string(),
        }
    };
    let row = |row: &str| row.split(',').map(cell).collect::<Vec<_>>().join(",");
    text.lines().map(row).collect::<Vec<_>>().join("\n")
}

#[test]
fn messages_of_a_sound_file_are_read() {
    let timetable = read(MESSAGES).unwrap();
    let compute: Vec<String> = MESSAGES
        .lines()
        .map(|row| row.split(',').filter(|cell| !cell.contains('_')).collect::<Vec<_>>().join(","))
        .collect();
    assert_eq!(timetable, read(&compute.join("\n")).unwrap());
    let zb1p = read(&in_todays_letters(ZB1P)).unwrap();
    assert_eq!((zb1p.placement.n_stages(), zb1p.n_micro_batches), (4, 8));
    lower(&zb1p, &Lowering::default()).unwrap();
}

#[test]
fn programs_of_one_pipe_read_back_with_their_messages() {
    let mut n_read = 0;
    for schedule in SCHEDULES {
        for shape in [Shape::new(4, 8), Shape::new(2, 2), Shape::new(3, 6)] {
            let Ok(timetable) = schedule.timetable(&shape) else { continue };
            if timetable.placement.n_pipes() > 1 {
                continue;
            }
            let program = lower(&timetable, &Lowering::default()).unwrap();
            let Ok(csv) = to_comms_csv(&program) else { continue };
            assert_eq!(read(&csv).unwrap().rows, timetable.rows, "{}", schedule.name());
            n_read += 1;
        }
    }
    assert!(n_read > 15, "{n_read}");
}

#[test]
fn older_letters_are_refused_with_their_meaning() {
    let meaning = "in PyTorch's older letters BW is the whole backward and B its input half: write B for BW, and I for B";
    let found = refusal(ZB1P);
    assert!(found.starts_with("row 1 (rank 0), column 12: `2BW0`: unknown type"), "{found}");
    assert!(found.ends_with(meaning), "{found}");
    let found = refusal(include_str!("zb1p_compute.csv"));
    let wanted = "row 1 (rank 0), column 13: 0W0 beside 0B0, which has the weights' half already";
    assert!(found.starts_with(wanted) && found.ends_with(meaning), "{found}");
}

#[test]
fn files_of_other_projects_are_proven() {
    let titan = read(include_str!("torchtitan.csv")).unwrap();
    assert_eq!((titan.placement.n_stages(), titan.n_micro_batches), (4, 8));
    lower(&titan, &Lowering::default()).unwrap();
    let theirs = read(include_str!("dualpipev.csv")).unwrap();
    lower(&theirs, &Lowering::default()).unwrap();
    let ours = find("dualpipe-v").unwrap().timetable(&Shape::new(4, 10)).unwrap();
    assert_eq!(ours.rows, theirs.rows);
}

#[test]
fn the_first_wrong_message_is_named() {
    for (from, to, refused) in [
        ("0SEND_F0,", "", "row 1 (rank 0), column 1: 0F0 is never sent: write 0SEND_F0 after it"),
        ("1RECV_F0,", "", "row 2 (rank 1), column 1: 1F0 needs 1RECV_F0 before it"),
        ("0RECV_B1,", "", "row 1 (rank 0), column 7: 0B1 needs 0RECV_B1 before it"),
        (
            "0F0,0SEND_F0",
            "0SEND_F0,0F0",
            "row 1 (rank 0), column 1: `0SEND_F0` stands before the op that makes it",
        ),
        ("0SEND_F1", "0SEND_F0", "row 1 (rank 0), column 4: a second 0SEND_F0"),
        ("0SEND_F0", "0SEND_B0", "`0SEND_B0`: no such message goes between ranks: leave it out"),
        ("1SEND_B1", "1SEND_B1,1SEND_F1", "`1SEND_F1`: no such message goes between ranks"),
        ("1RECV_F0", "0RECV_F0", "`0RECV_F0`: no such message goes between ranks"),
        ("1RECV_F0", "1RECV_F0x", "something follows the action"),
        (
            "1RECV_F0,1F0,1RECV_F1,1B0",
            "1RECV_F1,1RECV_F0,1F0,1B0",
            "row 2 (rank 1), column 1: messages cross: 1RECV_F1 takes what 0SEND_F0 sends, at row 1 (rank 0), column 2",
        ),
        (
            "0F1,0SEND_F1,0RECV_B0",
            "0RECV_B0,0F1,0SEND_F1",
            "row 2 (rank 1), column 3: it hangs: 1RECV_F1 meets 0RECV_B0, at row 1 (rank 0), column 3, and both \
             receive",
        ),
        (
            "1RECV_F1,1B0,1SEND_B0",
            "1B0,1SEND_B0,1RECV_F1",
            "row 1 (rank 0), column 4: it hangs: 0SEND_F1 meets 1SEND_B0, at row 2 (rank 1), column 4, and both send",
        ),
    ] {
        let bad = MESSAGES.replacen(from, to, 1);
        assert_ne!(bad, MESSAGES, "{from}");
        let found = refusal(&bad);
        assert!(found.contains(refused), "{to}: {found}");
    }
}

/// Three ranks in a ring of waits: no two actions meet wrongly, and still nothing goes on.
#[test]
fn a_wait_for_what_never_begins_is_a_hang() {
    let text = "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1RECV_B0,1B0,1SEND_B0,1SEND_F0\n\
                2RECV_F0,2F0,2B0,2SEND_B0\n";
    let found = refusal(text);
    assert!(found.contains("it hangs"), "{found}");
}

proptest! {
    /// Any order of a sound file's actions is read or refused, and what is read is sent and taken
    /// in one order.
    #[test]
    fn shuffled_rows_are_read_or_refused(
        rows in (Just(MESSAGES.lines().map(|row| row.split(',').collect::<Vec<_>>()).collect::<Vec<_>>()), any::<[prop::sample::Index; 4]>())
            .prop_map(|(mut rows, at)| {
                for (row, at) in rows.iter_mut().zip(at.chunks(2)) {
                    let n = row.len();
                    row.swap(at[0].index(n), at[1].index(n));
                }
                rows
            })
    ) {
        let text = rows.iter().map(|row| row.join(",")).collect::<Vec<_>>().join("\n");
        let _ = read(&text);
    }
}
