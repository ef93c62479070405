//! The database accepts every statement that we have.

use std::path::{Path, PathBuf};

use sqlx::{AssertSqlSafe, Executor as _, SqlSafeStr as _};
use steadfast_tests::harness::Db;

/// Every `.sql` file is prepared against the migrated schema: the check that a compile-time macro would do, made by the
/// servers that are promised. Preparing is what the driver does too, so a file with two statements, a column that is gone or
/// a parameter without a type fails here and not at a customer's.
#[tokio::test]
async fn s_every_statement_prepares() {
    let with_pgvector = Db::new().await;
    assert!(
        with_pgvector
            .one::<bool>("select exists (select from pg_extension where extname = 'vector')")
            .await,
        "STEADFAST_TEST_PG has no pgvector"
    );
    let without = Db::new_on15().await;
    assert!(
        !without
            .one::<bool>("select exists (select from pg_extension where extname = 'vector')")
            .await,
        "STEADFAST_TEST_PG15 has pgvector"
    );

    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../queue-schema/sql");
    let files = sql_files(&root);
    assert!(files.len() > 20, "only {} statements below {}", files.len(), root.display());

    let mut failures = Vec::new();
    for (db, server, own, other) in [
        (&with_pgvector, "with pgvector", "_pgvector.sql", "_signbit.sql"),
        (&without, "15 without pgvector", "_signbit.sql", "_pgvector.sql"),
    ] {
        let mut conn = db.pool.acquire().await.expect("a connection");
        // Left out is only what has a twin for this server; a file without one must do everywhere, whatever its name.
        let has_twin = |f: &Path| {
            f.to_string_lossy()
                .strip_suffix(other)
                .is_some_and(|stem| Path::new(&format!("{stem}{own}")).exists())
        };
        for file in files.iter().filter(|f| !has_twin(f)) {
            let sql = std::fs::read_to_string(file).expect("a file that was just listed");
            if let Err(e) = conn.prepare(AssertSqlSafe(sql).into_sql_str()).await {
                failures.push(format!("{} ({server}): {e}", file.strip_prefix(&root).unwrap_or(file).display()));
            }
        }
    }
    assert!(
        failures.is_empty(),
        "{} statements do not prepare:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

fn sql_files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files.extend(sql_files(&path));
        } else if path.extension().is_some_and(|e| e == "sql") {
            files.push(path);
        }
    }
    files.sort();
    files
}
