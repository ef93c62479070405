//! Two ways to find a block, by its words and by its meaning, and one list out of both.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::FromRow;

use crate::kind::{embed, question};
use crate::question::Vector;
use crate::tenant::Scope;
use crate::{Conn, DbError};

/// How many blocks the words may contribute to one list. Fixed, so that every page of a list is cut from the same list.
pub const KEYWORD_DEPTH: i64 = 300;
/// How many the meaning may: everything is somewhat near to everything, so more would be padding.
pub const MEANING_DEPTH: i64 = 100;
/// Candidates by sign bits before the exact ranking (recall 0.996 of the top ten on 3,000 real vectors).
const CANDIDATES: i64 = 200;
/// The constant of reciprocal rank fusion: how little the first places may outweigh the rest.
const RRF: f64 = 60.0;

/// Where to look, within what the caller may read.
#[derive(Clone, Debug, Default)]
pub struct Within {
    /// Only these Spaces; none for all of the caller's.
    pub spaces: Option<Vec<i64>>,
    pub said: Said,
}

/// Whether only what belongs to a conversation counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Said {
    #[default]
    Anything,
    InAnyConversation,
    In(String),
}

/// A question's words as the index has them. Text for `tsquery`, made by the server and safe to hand back to it.
#[derive(Clone, Debug, Default, FromRow)]
pub struct Terms {
    all_words: Option<String>,
    any_word: Option<String>,
    /// Each word by itself, to count how many of them stand in a block.
    words: Vec<String>,
    /// 0: nothing but stop-words and punctuation.
    pub word_count: i64,
}

/// A block that a leg found, best first, with that leg's score in 0..1.
#[derive(Clone, Copy, Debug, PartialEq, FromRow)]
pub struct Found {
    pub id: i64,
    pub score: f64,
    /// How much of the question this match speaks for, 0..1: the part of its words that stand in the block. 1 for the semantic leg,
    /// which takes the question as a whole.
    pub covers: f64,
}

/// # Errors
/// When the database does not answer. No text makes it fail: see the statement.
pub async fn terms(conn: &mut Conn, text: &str) -> Result<Terms, DbError> {
    sqlx::query_as(sql!("search/terms")).bind(text).fetch_one(conn).await
}

/// The keyword leg: blocks with all the words, then those with any of them.
///
/// # Errors
/// When the database does not answer.
pub async fn keyword(conn: &mut Conn, scope: &Scope, within: &Within, terms: &Terms) -> Result<Vec<Found>, DbError> {
    let mut found: Vec<Found> = Vec::new();
    let any = terms.any_word.as_ref().filter(|_| terms.word_count > 1);
    for query in [terms.all_words.as_ref(), any].into_iter().flatten() {
        let depth = usize::try_from(KEYWORD_DEPTH).unwrap_or(usize::MAX);
        if found.len() >= depth {
            break;
        }
        let more: Vec<Found> = sqlx::query_as(sql!("search/keyword"))
            .bind(scope.tenant_id())
            .bind(scope.user_id())
            .bind(query)
            .bind(&within.spaces)
            .bind(KEYWORD_DEPTH)
            .bind(&terms.words)
            .fetch_all(&mut *conn)
            .await?;
        let seen: std::collections::HashSet<i64> = found.iter().map(|f| f.id).collect();
        found.extend(more.into_iter().filter(|f| !seen.contains(&f.id)));
        found.truncate(depth);
    }
    Ok(found)
}

/// The semantic leg: blocks with a vector of the same model, nearest first; those that point the other way are left out.
///
/// # Errors
/// When the database does not answer.
pub async fn nearest(conn: &mut Conn, scope: &Scope, within: &Within, to: &Vector) -> Result<Vec<Found>, DbError> {
    let (said, conversation) = match &within.said {
        Said::Anything => (false, None),
        Said::InAnyConversation => (true, None),
        Said::In(c) => (true, Some(c)),
    };
    let pgvector: bool = sqlx::query_scalar(sql!("block/has_pgvector")).fetch_one(&mut *conn).await?;
    let mut found: Vec<Found> = if pgvector {
        sqlx::query_as(sql!("search/nearest_pgvector"))
            .bind(scope.tenant_id())
            .bind(scope.user_id())
            .bind(&to.values)
            .bind(&within.spaces)
            .bind(&to.model)
            .bind(said)
            .bind(conversation)
            .bind(MEANING_DEPTH)
            .fetch_all(conn)
            .await?
    } else {
        let candidates: Vec<(i64, Vec<u8>)> = sqlx::query_as(sql!("search/nearest_signbit"))
            .bind(scope.tenant_id())
            .bind(scope.user_id())
            .bind(embed::signs(&to.values))
            .bind(&within.spaces)
            .bind(&to.model)
            .bind(said)
            .bind(conversation)
            .bind(CANDIDATES)
            .fetch_all(conn)
            .await?;
        rank(&to.values, candidates)
    };
    found.retain(|f| f.score > 0.0);
    Ok(found)
}

/// Candidates by their exact cosine, ties by id.
fn rank(to: &[f32], candidates: Vec<(i64, Vec<u8>)>) -> Vec<Found> {
    let mut found: Vec<Found> = candidates
        .into_iter()
        .filter_map(|(id, bytes)| cosine(to, &question::unpack(&bytes)).map(|score| Found { id, score, covers: 1.0 }))
        .collect();
    found.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.id.cmp(&b.id)));
    found.truncate(usize::try_from(MEANING_DEPTH).unwrap_or(usize::MAX));
    found
}

fn cosine(a: &[f32], b: &[f32]) -> Option<f64> {
    if a.len() != b.len() {
        return None;
    }
    let (mut dot, mut aa, mut bb) = (0.0_f64, 0.0_f64, 0.0_f64);
    for (x, y) in a.iter().zip(b) {
        let (x, y) = (f64::from(*x), f64::from(*y));
        dot += x * y;
        aa += x * x;
        bb += y * y;
    }
    (aa > 0.0 && bb > 0.0).then(|| dot / (aa.sqrt() * bb.sqrt()))
}

/// A block in the one list, with what each leg said of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hit {
    pub id: i64,
    /// 0..1; 1 is first in both legs.
    pub score: f64,
    pub keyword: Option<f64>,
    pub vector: Option<f64>,
}

/// Reciprocal rank fusion: the legs' scores have no common scale, their ranks do. Ties by id, so the list is the same each time.
///
/// Ranks alone say nothing about how good a place is: second of two is hardly less than first, though it may be a word in passing
/// ("move a call") or a cosine at the bottom of the list. So a match on some of the words counts with the square of the part they
/// are, and a neighbour counts between half and whole, by where its cosine lies between the list's last and first. The
/// road not taken: adding up the legs' scores themselves, which each model and each text length would tilt anew.
#[must_use]
pub fn fuse(keyword: &[Found], vector: &[Found]) -> Vec<Hit> {
    let best = 2.0 / (RRF + 1.0);
    let mut hits: HashMap<i64, Hit> = HashMap::new();
    let blank = |id| Hit {
        id,
        score: 0.0,
        keyword: None,
        vector: None,
    };
    let mut rank = 0.0;
    for f in keyword {
        rank += 1.0;
        let hit = hits.entry(f.id).or_insert_with(|| blank(f.id));
        hit.score += f.covers * f.covers / (RRF + rank) / best;
        hit.keyword = Some(f.score);
    }
    let (first, last) = (vector.first().map_or(0.0, |f| f.score), vector.last().map_or(0.0, |f| f.score));
    rank = 0.0;
    for f in vector {
        rank += 1.0;
        // All equally near: nothing to tell them apart by.
        let nearness = if first > last { (f.score - last) / (first - last) } else { 1.0 };
        let hit = hits.entry(f.id).or_insert_with(|| blank(f.id));
        hit.score += f64::midpoint(1.0, nearness) / (RRF + rank) / best;
        hit.vector = Some(f.score);
    }
    let mut list: Vec<Hit> = hits.into_values().collect();
    list.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.id.cmp(&b.id)));
    list
}

/// What is shown of a block.
#[derive(Clone, Debug, FromRow)]
pub struct Shown {
    pub id: i64,
    pub document_id: i64,
    pub space_id: i64,
    pub page_no: i32,
    pub no: i32,
    pub version: i32,
    pub content: String,
    pub created_at: DateTime<Utc>,
    pub embedded_at: Option<DateTime<Utc>>,
    pub title: String,
    pub media_type: String,
    pub user_id: i64,
    pub conversation: Option<String>,
    pub owner: String,
    marked: String,
}

impl Shown {
    /// The passage around the words that matched, as plain text, and where in it they stand: (start, length) in characters.
    /// Ranges and not markup, because the text is anybody's and a client may show it as HTML.
    #[must_use]
    pub fn snippet(&self) -> (String, Vec<(usize, usize)>) {
        let (mut text, mut marks) = (String::new(), Vec::new());
        let (mut at, mut open) = (0_usize, None);
        for c in self.marked.chars() {
            match c {
                '\u{E000}' => open = Some(at),
                '\u{E001}' => {
                    if let Some(start) = open.take() {
                        marks.push((start, at - start));
                    }
                }
                c => {
                    text.push(if c.is_control() { ' ' } else { c });
                    at += 1;
                }
            }
        }
        (text, marks)
    }
}

/// The blocks of one page of results, in the order given. What was deleted in the meantime, or is not the caller's, is missing.
///
/// # Errors
/// When the database does not answer.
pub async fn show(conn: &mut Conn, scope: &Scope, ids: &[i64], terms: &Terms) -> Result<Vec<Shown>, DbError> {
    sqlx::query_as(sql!("search/show"))
        .bind(scope.tenant_id())
        .bind(scope.user_id())
        .bind(ids)
        .bind(&terms.any_word)
        .fetch_all(conn)
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(ids: &[i64]) -> Vec<Found> {
        ids.iter()
            .map(|&id| Found {
                id,
                score: 0.5,
                covers: 1.0,
            })
            .collect()
    }

    fn near(cosines: &[(i64, f64)]) -> Vec<Found> {
        let found = |&(id, score)| Found { id, score, covers: 1.0 };
        cosines.iter().map(found).collect()
    }

    #[test]
    fn what_both_legs_found_comes_first_and_ties_go_by_id() {
        let list = fuse(&found(&[7, 3]), &found(&[3, 9]));
        assert_eq!(list.iter().map(|h| h.id).collect::<Vec<_>>(), [3, 7, 9]);
        let list = fuse(&found(&[5]), &found(&[2]));
        assert_eq!(list.iter().map(|h| h.id).collect::<Vec<_>>(), [2, 5]);
        let first = fuse(&found(&[1]), &found(&[1]));
        assert!((first[0].score - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_word_in_passing_does_not_outrank_the_best_meaning() {
        let some = |id, covers| vec![Found { id, score: 0.1, covers }];
        let first = |keyword: &[Found], vector: &[Found]| fuse(keyword, vector)[0].id;
        // Measured with MiniLM on the samples: the contract, then four others; block 2 has one of the question's four words.
        let minilm = near(&[(1, 0.43), (2, 0.15), (3, 0.12), (4, 0.08), (5, 0.02)]);
        for second in 2..=5 {
            assert_eq!(first(&some(second, 0.25), &minilm), 1);
        }
        // Models whose cosines all lie close together are no different.
        let narrow = near(&[(1, 0.83), (2, 0.78), (3, 0.77), (4, 0.76)]);
        assert_eq!(first(&some(2, 0.25), &narrow), 1);
        assert_eq!(first(&some(2, 0.5), &narrow), 1);
        // All the words count in full, wherever the block stands in the other leg; and most of them still decide.
        assert_eq!(first(&some(5, 1.0), &minilm), 5);
        assert_eq!(first(&some(2, 0.8), &minilm), 2);
        // Of two that mean the same, the one with a word of the question.
        assert_eq!(first(&some(2, 0.25), &near(&[(1, 0.50), (2, 0.499), (3, 0.2)])), 2);
    }

    #[test]
    fn vectors_of_another_length_are_no_neighbours() {
        let near = question::pack(&[1.0, 0.0]);
        let ranked = rank(
            &[1.0, 0.1],
            vec![(1, question::pack(&[0.0, 1.0])), (2, near), (3, question::pack(&[1.0]))],
        );
        assert_eq!(ranked.iter().map(|f| f.id).collect::<Vec<_>>(), [2, 1]);
    }
}
