"""Each sentence that promises something about what leaves a machine has a test that would
fail if it were not true.

A sentence is looked for by a phrase of it. One that explains, advises or says what is *not*
promised stands in `EXPLAINS`. A sentence that is new or changed has to get its place here.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

TESTED = {
    "docs/privacy.md": {
        "In a federation examples stay where they are": (
            "test_nothing_of_a_marked_table_leaves_whatever_is_asked",
        ),
        "| bound |": (
            "test_a_clipped_round_moves_no_further_than_the_bound",
            "test_what_a_client_sends_stays_within_the_clip_norm_of_what_it_was_sent",
        ),
        "| noise on the mean |": (
            "test_the_server_adds_clipped_changes_and_noise_over_the_number_expected",
            "test_epsilon_is_dp_accountings",
        ),
        "| noise by clients |": (
            "test_a_client_can_add_the_noise_itself",
            "test_noise_by_clients_is_accounted_for_each_client_alone",
            "test_a_clients_noise_is_its_secret",
        ),
        "| sums only |": (
            "test_models_are_the_simulations_to_the_bound",
            "test_what_a_client_sends_looks_random_to_the_coordinator",
        ),
        "| private steps |": (
            "test_a_step_is_the_mean_of_clipped_gradients",
            "test_private_steps_are_counted_and_epsilon_is_dp_accountings",
        ),
        "| fewer bytes |": ("test_the_ledger_counts_what_travels",),
        "such sums are not sent any more": (
            "test_nothing_is_sent_of_two_columns_together",
        ),
        "prints this table": (
            "test_the_table_in_the_documentation_is_the_one_that_is_printed",
        ),
        "always leave; sums over": (
            "test_a_policy_answers_what_it_allows_whatever_keys_a_request_has",
            "test_clients_without_a_policy_of_their_own_take_part_in_sums",
        ),
        "is refused before a connection is made": (
            "test_a_job_that_the_policy_does_not_allow_is_not_begun",
            "test_a_coordinator_gets_no_more_than_the_policy_says",
        ),
        "no mask covers it in any job": (
            "test_measurements_leave_once_a_round_and_not_by_default",
        ),
        "lets nothing of its own be seen measures nothing": (
            "test_measurements_leave_once_a_round_and_not_by_default",
        ),
        "Counts of a description with noise": ("test_the_policy_decides",),
        "are limits of their own": (
            "test_rounds_beyond_the_policys_are_refused",
            "test_runs_of_one_job_are_counted",
            "test_no_more_epsilon_is_spent_than_the_policy_allows",
            "test_a_job_that_the_policy_does_not_allow_is_refused",
            "test_requests_are_answered_in_the_policys_hours",
        ),
        "in a simulation and over machines": (
            "test_compressed_updates_give_the_models_of_the_simulation",
            "test_noise_on_the_mean_is_that_of_the_simulation",
        ),
        "The ledger counts what is sent": ("test_the_ledger_counts_what_travels",),
        "A transform of your own": ("test_a_new_transform_is_one_file",),
        "offers it as an entry point": (
            "test_a_transform_of_another_package_is_found_by_its_entry_point",
        ),
        "no text of an error, no path and no name": (
            "test_no_error_ends_a_client_and_no_text_of_it_leaves",
            "test_nothing_of_a_marked_table_leaves_whatever_is_asked",
            "test_every_code_has_words",
        ),
        "sends the names of categories that at least five": (
            "test_no_rare_category_and_no_row_leaves_a_client",
        ),
        "no cell and no sum over fewer than five rows follows": (
            "test_no_cell_follows_from_all_that_a_job_sends_of_a_table",
            "test_no_row_of_a_few_whole_numbers_of_a_small_range_follows_from_the_sums",
            "test_two_results_that_are_one_number_make_a_small_range_no_larger",
            "test_nothing_is_sent_of_two_columns_together",
            "test_no_time_follows_from_what_is_said_of_outcomes",
        ),
        "no combination of them": (
            "test_no_client_follows_from_all_sums_whoever_is_lost_when",
            "test_clients_keep_the_sums_that_the_server_has",
            "test_the_sum_that_was_opened_counts_and_not_the_one_that_was_begun",
            "test_clients_look_at_combinations_themselves",
            "test_sums_of_two_vectors_of_a_client_hide_it_together",
            "test_a_client_counts_the_clients_whose_vectors_are_in_a_sum",
        ),
        "Noise by clients and private steps hold": (
            "test_no_more_epsilon_is_spent_than_the_policy_allows",
            "test_a_row_is_also_in_what_hides_the_whole_client",
        ),
        "The same, whatever a message asks for": (
            "test_a_policy_answers_what_it_allows_whatever_keys_a_request_has",
            "test_a_coordinator_gets_no_more_than_the_policy_says",
        ),
        "Another method, hyper-parameter, split, round or uplink": (
            "test_a_hostile_request_is_refused_and_nothing_is_lost",
            "test_a_round_that_the_job_does_not_have_is_refused_without_a_policy",
        ),
        "sends the sums of its columns once a job": (
            "test_a_client_tells_the_sums_of_one_set_of_rows_in_a_job",
            "test_a_client_takes_pooled_statistics_once_a_job",
            "test_statistics_that_cannot_hold_a_clients_own_are_refused_and_not_kept",
            "test_a_coordinator_that_invents_statistics_learns_no_cell",
            "test_few_hidden_cells_do_not_show_in_whether_a_client_takes_part",
        ),
        "A round is answered once in a run": (
            "test_another_request_for_a_round_is_refused_and_the_same_is_not",
            "test_a_round_that_is_asked_twice_does_not_take_the_noise_off",
        ),
        "stops no client and deletes no state": (
            "test_a_hostile_request_is_refused_and_nothing_is_lost",
            "test_what_was_not_asked_for_or_is_too_large_is_not_read",
            "test_states_are_deleted_only_by_a_number_that_is_stored",
            "test_no_pooled_sums_keep_a_client_from_starting",
            "test_no_error_about_pooled_sums_keeps_a_client_from_starting",
        ),
        "No answer leads a client to another address": (
            "test_a_redirect_is_not_followed_and_said_in_a_line",
            "test_a_client_trusts_its_federations_server_only",
        ),
        "Rounds, runs and epsilon end where the policy says": (
            "test_rounds_beyond_the_policys_are_refused",
            "test_runs_of_one_job_are_counted",
            "test_exactly_the_policys_epsilon_may_be_spent_in_whatever_order",
            "test_a_key_too_many_or_null_is_refused",
            "test_no_key_leads_past_the_limit_of_rounds",
        ),
        "each question is answered once in a run, and over the same": (
            "test_a_coordinator_cannot_ask_a_question_again",
            "test_the_same_questions_without_a_client_are_not_answered",
            "test_counts_are_added_with_the_same_weight_of_each_client",
            "test_a_message_of_many_questions_is_refused_before_any_is_answered",
        ),
        "does not depend on which rows one client has": (
            "test_sums_over_machines_do_not_depend_on_whose_rows_they_are",
            "test_a_sum_is_of_rows_that_are_rounded_whoever_has_them",
        ),
        "a job adds models, or the sums of boosting or a regression, and not both": (
            "test_a_job_that_boosts_trains_nothing_else",
        ),
        "tells sums of its own columns without masks or noise": (
            "test_no_client_tells_sums_of_its_columns_in_a_job_behind_masks",
            "test_clients_that_boost_tell_nothing_of_their_columns",
        ),
        "What each client adds of models has noise, in which": (
            "test_noise_hides_of_which_parts_a_sum_is",
            "test_the_same_vector_has_the_same_noise",
        ),
        "add masks that do not cancel": (
            "test_clients_that_were_asked_different_things_give_no_sum",
            "test_clients_that_are_sent_different_models_give_no_sum",
            "test_clients_that_are_asked_different_questions_give_no_sum",
            "test_clients_that_add_different_vectors_give_no_sum",
        ),
        "confirmed to each other that it is these": (
            "test_a_sum_is_opened_that_all_of_its_clients_confirmed",
            "test_a_client_that_was_not_in_a_list_is_in_no_later_sum",
            "test_the_neighbours_of_a_sum_are_those_of_its_ring",
        ),
        "whose keys a client has count as those that hide it": (
            "test_clients_that_are_invented_do_not_hide_the_others",
            "test_a_client_that_is_named_in_a_sum_without_a_part_is_missed",
        ),
        "how much it computed does not depend on": (
            "test_what_no_mask_hides_of_an_answer_says_nothing_of_numbers",
        ),
        "says once a job that one became too large": (
            "test_a_client_whose_updates_are_hidden_says_once_that_its_model_diverged",
            "test_no_prediction_makes_a_sum_too_large",
            "test_a_personal_model_shows_in_no_answer",
            "test_a_state_shows_in_no_answer",
        ),
        "They get the models that the method sends": (
            "test_a_client_that_comes_later_takes_what_the_others_agreed_to",
        ),
        "only if the table of methods says so": (
            "test_what_travels_is_kept_and_seen",
            "test_of_every_method_it_is_said_what_a_coordinator_sees",
        ),
        "An answer of a wrong shape or type, NaN": (
            "test_wrong_answers_are_refused_in_a_line_that_says_why",
            "test_a_model_that_is_too_far_away_does_not_reach_the_others",
            "test_numbers_out_of_range_are_refused_with_the_senders_name",
            "test_a_run_with_a_liar_ends_with_sound_models_and_a_sound_checkpoint",
            "test_impossible_numbers_of_rows_are_not_believed",
            "test_a_wrong_answer_is_named_and_the_others_are_described",
            "test_whatever_a_newcomer_answers_the_others_go_on",
            "test_a_client_that_says_it_diverged_does_not_end_what_the_others_can_do",
        ),
        "cannot answer in another's name": (
            "test_an_answer_of_somebody_who_was_not_asked_is_refused",
        ),
        "bounded by what was asked of it": (
            "test_what_was_not_asked_for_or_is_too_large_is_not_read",
            "test_a_body_that_ends_too_early_is_no_answer",
            "test_a_long_answer_is_a_short_line",
        ),
        "Without the key of a registered certificate": (
            "test_a_stranger_is_not_spoken_to",
            "test_certificates_are_revoked_and_renewed_while_the_port_is_open",
        ),
        "Connections, heads and bodies are bounded": (
            "test_silent_strangers_make_place_for_clients",
            "test_a_client_has_few_connections",
            "test_who_says_nothing_or_too_slowly_is_cut_off",
            "test_what_is_no_request_of_a_client_is_refused",
            "test_what_was_not_asked_for_or_is_too_large_is_not_read",
        ),
        "Traffic is encrypted (TLS 1.3)": (
            "test_a_stranger_is_not_spoken_to",
            "test_a_client_trusts_its_federations_server_only",
        ),
        "cannot change a terminal or a log": (
            "test_every_character_is_shown_or_escaped",
        ),
        "CSV files hold no formula": (
            "test_formulas_are_guarded",
            "test_categories_of_frames_are_no_formulas",
        ),
        "Markdown and the page of a report": (
            "test_text_in_markdown_is_text",
            "test_a_script_that_slipped_into_the_page_does_not_run",
        ),
        "No file runs code": (
            "test_pickles_are_refused",
            "test_a_tree_that_somebody_else_wrote_is_one_line",
            "test_no_file_that_results_name_is_run",
        ),
    },
    "docs/federation-visibility.md": {
        "The coordinator never sees the examples": (
            "test_nothing_of_a_marked_table_leaves_whatever_is_asked",
        ),
        "It always sees which clients are connected": (
            "test_a_job_that_the_policy_does_not_allow_is_refused",
            "test_measurements_leave_once_a_round_and_not_by_default",
        ),
        "A client says before it trains how many numbers": (
            "test_it_is_said_in_numbers",
            "test_a_job_counts_its_rounds_its_vectors_and_the_cells_that_train",
        ),
        "it adds up in its account": (
            "test_models_and_losses_are_one_sum",
            "test_probes_and_models_are_one_sum",
            "test_what_noise_hides_is_not_counted_and_all_runs_of_a_job_are",
        ),
        "A policy refuses probes by default": (
            "test_a_job_that_the_policy_does_not_allow_is_refused",
        ),
        "counts, means and sums of squares": (
            "test_what_is_agreed_is_what_one_table_of_all_training_rows_would_give",
        ),
        "All clients learn the sums and the": (
            "test_a_client_that_comes_later_takes_what_the_others_agreed_to",
        ),
        "it also shows the names of those that five": (
            "test_no_rare_category_and_no_row_leaves_a_client",
        ),
        "No count of fewer than five training rows is among": (
            "test_no_cell_follows_from_all_that_a_job_sends_of_a_table",
            "test_no_count_of_few_rows_follows_from_the_sums_of_a_few_whole_numbers",
        ),
        "Nothing is sent of two columns together": (
            "test_nothing_is_sent_of_two_columns_together",
            "test_mistakes_are_one_line_with_the_line_in_the_file",
        ),
        "All of it is computed, column by column": (
            "test_nothing_follows_of_few_rows_of_small_tables",
        ),
        "A few gaps are filled": (
            "test_few_missing_cells_are_filled_by_cells_near_the_mean",
        ),
        "Where five rows or more share each number": (
            "test_no_count_of_few_rows_follows_from_few_numbers",
        ),
        "Rows of a rare category": (
            "test_few_rows_of_a_category_count_as_the_first_other",
            "test_no_count_of_few_rows_follows_from_yes_and_no",
        ),
        "rows of the most frequent one as of another": (
            "test_no_count_of_few_rows_follows_from_counts_of_categories",
        ),
        "the four smallest cells become the next smallest": (
            "test_the_outermost_rows_become_the_next_ones",
            "test_how_many_rows_have_a_known_code_does_not_follow",
            "test_nothing_follows_of_few_rows_of_small_tables",
        ),
        "Bins of such numbers have nine rows or more": (
            "test_no_count_of_few_rows_follows_from_bins",
            "test_no_bin_is_as_narrow_as_a_number",
        ),
        "Deviations are corrected": (
            "test_deviations_of_normal_numbers_are_right_on_average",
            "test_rounded_sums_are_near",
        ),
        "what is too large is cut in each row": (
            "test_what_is_asked_makes_no_number_too_large",
            "test_sums_over_machines_do_not_depend_on_whose_rows_they_are",
        ),
        "eight numbers are still far from all others": (
            "test_far_rows_do_not_hide_among_rows_that_are_far_too",
            "test_no_cell_is_nearly_told_by_being_far_from_all_others",
            "test_few_far_codes_count_as_no_numbers",
        ),
        "If such numbers are in twenty rows or fewer": (
            "test_numbers_of_few_rows_become_the_nearest_of_many",
            "test_few_rare_numbers_are_not_told_whatever_their_steps_are",
        ),
        "If these are more than half of the rows": (
            "test_no_number_is_told_of_a_few_that_two_rows_share_each",
            "test_no_count_of_few_rows_follows_from_a_few_known_values",
            "test_few_rows_of_a_category_count_as_the_first_other",
        ),
        "The sum of numbers that fewer than five": (
            "test_no_digit_of_few_rows_is_in_the_sums",
            "test_no_remainder_of_one_row_is_in_the_sums",
        ),
        "The mean changes by at most": ("test_rounded_sums_are_near",),
        "A column with values in fewer than nine": (
            "test_a_column_with_few_values_is_one_without_values",
        ),
        "a line names the column": (
            "test_clients_with_few_values_each_are_told_so_in_one_line",
        ),
        "a split of fewer than five rows is not measured": (
            "test_what_is_measured_on_few_rows_stays",
        ),
        "So a policy refuses them by default": (
            "test_measurements_leave_once_a_round_and_not_by_default",
        ),
        "how many training rows had the event": (
            "test_no_client_tells_of_few_outcomes",
            "test_no_time_follows_from_what_is_said_of_outcomes",
        ),
        "it sends two numbers for each split": (
            "test_of_times_only_pairs_are_measured",
        ),
        "The histograms of times and": ("test_of_times_only_pairs_are_measured",),
        "Sums over risk sets, baseline hazards": (
            "test_of_times_only_pairs_are_measured",
        ),
        "sends nothing that is not masked": ("test_only_masks_leave_a_client",),
        "one of a single row shows": (
            "test_boosting_shows_targets_of_single_rows_in_bins_of_single_rows_only",
        ),
        "It cannot ask more": (
            "test_a_coordinator_cannot_ask_a_question_again",
            "test_the_same_questions_without_a_client_are_not_answered",
        ),
        "clients tell nothing of their columns": (
            "test_clients_that_boost_tell_nothing_of_their_columns",
            "test_no_client_tells_sums_of_its_columns_in_a_job_behind_masks",
        ),
        "a policy with `noise_only` refuses such a job": (
            "test_a_policy_decides_on_trees",
        ),
        "With a table `[regression]` the same holds": (
            "test_machines_fit_what_pooled_rows_fit",
            "test_only_masks_leave_a_client",
            "test_a_policy_decides_on_regressions",
        ),
        "With own intercepts, and in Cox's": (
            "test_counts_of_each_client_follow_beside_own_intercepts",
        ),
        "So a policy allows these only with": (
            "test_a_policy_decides_on_own_intercepts",
        ),
        "A client answers what a fit asks": (
            "test_a_coordinator_asks_what_a_fit_asks",
            "test_a_run_ends_after_as_many_questions_as_a_fit_may_need",
        ),
        "a second, late or stale one": (
            "test_a_second_answer_is_refused_and_the_first_stands",
            "test_a_stale_answer_is_refused_and_the_right_one_is_awaited",
            "test_an_answer_of_somebody_who_was_not_asked_is_refused",
        ),
        "| shapes, types, NaN and infinity |": (
            "test_wrong_answers_are_refused_in_a_line_that_says_why",
        ),
        "| its change of the model, with `clip`": (
            "test_bounds_in_closed_form",
            "test_error_feedback_never_sends_more_than_its_bound",
            "test_quantized_changes_are_within_their_bound",
            "test_noise_of_clients_is_within_its_bound",
        ),
        "| its change of the model otherwise": (
            "test_an_honest_first_round_is_believed",
            "test_of_two_clients_the_smaller_change_is_usual",
            "test_recent_rounds_are_compared_with_not_the_cohort",
            "test_a_usual_change_of_zero_leaves_room",
        ),
        "| other numbers that come with vectors |": (
            "test_numbers_out_of_range_are_refused_with_the_senders_name",
        ),
        "| what it measured |": (
            "test_metrics_know_their_range",
            "test_scores_are_of_the_rows_that_were_agreed_to",
        ),
        "| its work, private steps |": (
            "test_work_has_a_range",
            "test_private_steps_have_a_range",
        ),
        "| its number of rows |": ("test_impossible_numbers_of_rows_are_not_believed",),
        "The coordinator checks every answer": (
            "test_wrong_answers_are_refused_in_a_line_that_says_why",
        ),
        "A refused answer is logged with the client's name": (
            "test_a_wrong_answer_is_refused_by_name_and_the_others_count",
        ),
        "is written only if the server's model is finite": (
            "test_a_run_with_a_liar_ends_with_sound_models_and_a_sound_checkpoint",
        ),
        "the run ends before the first round": (
            "test_a_client_that_is_silent_or_tells_nonsense_is_named",
        ),
    },
    "SECURITY.md": {
        "run the same minor version": ("test_which_releases_talk",),
        "A client writes its policy": (
            "test_commands_write_and_show_the_policy_and_the_log",
        ),
        "What left a client": ("test_commands_write_and_show_the_policy_and_the_log",),
    },
}

EXPLAINS = {
    "docs/privacy.md": (
        "For whom",
        "More: ",
        "Updates and answers to probes without masks and noise show",
        "say something about the examples",
        "what each measure protects against",
        "The promises on this page are attacked again",
        "single columns, measurements, boosting, trained models",
        "can be learnt: from models",
        "Use noise where",
        "By role",
        "party follows the protocol",
        "an attacker can find what is listed",
        "tests these promises",
        "From a grammar it draws",
        "It tells the clients of a sum different things",
        "whose cells are all different",
        "looks for what follows by arithmetic",
        "How to report",
        "they may be below five",
        "is a list of transforms",
        "The order must be this one",
    ),
    "docs/federation-visibility.md": (
        "At coefficients that a coordinator chooses one row",
        "Beside them, a count of fewer than five rows",
        "These sums are exact, over all rows",
        "In two jobs over the same rows both can be had",
        "say nothing of a laboratory value of one decimal",
        "With windows, numbers of windows also tell",
        "Where few rows of all clients have a category",
        "Columns that follow from each other still say so",
        "For whom",
        "What else it sees depends on",
        "shows which of them need no more than weighted sums",
        "says much about them",
        "also send, once or twice, as an answer to a",
        "Sums over more rows reveal more with every model",
        "The sums show, over all clients together",
        "All clients get the trees",
        "has the messages",
        "TLS does not help here",
        "The settings in `[privacy]` do help",
        "says what each protects against",
        "Anyone who has `ca.key`",
        "is not detected",
        "which promise holds against whom",
        "This section is about",
        "does **not** promise",
        "single updates cannot be checked",
        "`revoke` it, and start again",
    ),
    "SECURITY.md": (
        "Please report privately",
        "Say which role",
        "Use made-up data",
        "A seed of",
        "What to expect",
        "Please leave us time",
        "by role, and nothing more",
        "is a fault, however it comes about",
        "is known; a better idea",
        "No fault of its own",
        "are not part of 0.1",
        "are used as they are released",
        "Keys: ",
    ),
}


def sentences(text):
    """The sentences of a text without tables, code and titles."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    lines = [it for it in text.split("\n") if not it.startswith(("|", "#"))]
    blocks = re.split(r"\n\s*\n|\n(?=- )", "\n".join(lines))
    found = []
    for block in blocks:
        plain = " ".join(block.split())
        found += re.split(r"(?<=[.!?])\)?\s+(?=[A-Z`*(\[])", plain)
    return [it.removesuffix(":").strip() for it in found if len(it.split()) > 2]


def promised(page):
    """The sentences of a page that need a test, or to be named as explaining."""
    text = (ROOT / page).read_text()
    text = re.sub(r"\n\*\*Not promised:\*\*.*?(?=\n##)", "", text, flags=re.DOTALL)
    # The note is a sentence like any other; its fences are none.
    found = sentences(re.sub(r"```\{note\}\n(.*?)```", r"\1", text, flags=re.DOTALL))
    if page == "docs/federation-visibility.md":
        checks = text.partition("| what it sends | what is checked |")[2]
        return found + [it for it in checks.split("\n") if it.startswith("|")][1:]
    if page == "docs/privacy.md":
        measures = text.partition("## What holds against whom")[0]
        found += [it for it in measures.split("\n") if it.startswith("|")][2:]
    return found


@pytest.mark.parametrize("page", TESTED)
def test_each_sentence_has_the_test_that_would_fail(page):
    phrases = (*TESTED[page], *EXPLAINS[page])
    without = [
        it for it in promised(page) if not any(phrase in it for phrase in phrases)
    ]
    assert not without
    text = " ".join((ROOT / page).read_text().split())
    assert not [it for it in phrases if it not in text]


def test_the_tests_are_there():
    text = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"^def (test_\w+)\(", text, flags=re.MULTILINE))
    named = {
        name for of_page in TESTED.values() for it in of_page.values() for name in it
    }
    assert not named - there
