//! `token`: who may ask the API.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Subcommand;
use queue_schema::tenant;
use serde_json::json;

use super::ctx::{Ctx, ago, say};

/// Far beyond any use, and within what the database's calendar can add to today.
const LONGEST: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// Make, list and revoke bearer tokens
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Examples:\n  steadfast token create --user ann --space Contracts --expires 90d\n  TOKEN=$(steadfast token create --user ann --quiet)\n  steadfast token create --user ann --email ann@example.org\n  steadfast token ls\n  steadfast token revoke 3 --yes\n\nA token is shown once; the database holds only its hash."
)]
pub(crate) enum Verb {
    /// A token for a user; user and Space are made when they are missing
    #[command(
        after_help = "Examples:\n  steadfast token create --user ann --space Contracts --expires 90d\n  TOKEN=$(steadfast token create --user ann --quiet)"
    )]
    Create {
        #[arg(long)]
        user: String,
        /// A Space it is a member of; by default what the user has already, or Documents for a new one
        #[arg(long)]
        space: Option<String>,
        /// A name to know it by
        #[arg(long, default_value = "made by hand")]
        name: String,
        /// After which time it ends, e.g. 90d
        #[arg(long, value_parser = humantime::parse_duration)]
        expires: Option<Duration>,
        /// Where mails about held work go, for this user from now on; without it the address that is known stays
        #[arg(long, value_name = "ADDRESS", value_parser = address)]
        email: Option<String>,
        /// Print the token and nothing else, on stderr neither
        #[arg(long, short)]
        quiet: bool,
    },
    /// All tokens, without their secrets
    Ls,
    /// End a token at once
    Revoke {
        id: i64,
        #[arg(long, short)]
        yes: bool,
    },
}

pub(crate) async fn run(verb: Verb, ctx: &Ctx) -> Result<ExitCode> {
    let db = ctx.db().await?;
    match verb {
        Verb::Create {
            user,
            space,
            name,
            expires,
            email,
            quiet,
        } => {
            let space = match space {
                Some(space) => space,
                None => first_space(&db, &user).await?.unwrap_or_else(|| "Documents".to_owned()),
            };
            for (field, value) in [("--user", &user), ("--space", &space), ("--name", &name)] {
                if value.trim().is_empty() || value.chars().any(char::is_control) {
                    bail!("{field} is empty or has control characters");
                }
            }
            if expires.is_some_and(|e| e < Duration::from_secs(1) || e > LONGEST) {
                bail!("--expires must be between 1s and 100years; without it the token does not end");
            }
            let made = tenant::create_token(&db, &user, &name, &space, expires).await?;
            if let Some(email) = &email {
                tenant::set_email(&db, made.user_id, email).await?;
            }
            if ctx.json {
                ctx.show(&json!({ "id": made.id, "token": made.token, "userId": made.user_id.to_string(), "spaceId": made.space_id.to_string(), "expiresAt": made.expires_at }))?;
            } else {
                // The token alone on stdout, so that it can be piped; the rest is for the person.
                say(&made.token);
                if !quiet {
                    eprintln!(
                        "token {} for {user} in Space {space} ({}); it is not shown again",
                        made.id, made.space_id
                    );
                }
            }
        }
        Verb::Ls => {
            let tokens = tenant::list_tokens(&db).await?;
            if ctx.json {
                ctx.show(&tokens)?;
                return Ok(ExitCode::SUCCESS);
            }
            let now = db.now().await?;
            let rows = tokens
                .into_iter()
                .map(|t| {
                    let state = match (t.revoked_at, t.expires_at) {
                        (Some(at), _) => format!("revoked {}", ago(now, at)),
                        (None, Some(at)) if at <= now => format!("expired {}", ago(now, at)),
                        (None, Some(at)) => format!("ends {}", ago(now, at)),
                        (None, None) => "valid".to_owned(),
                    };
                    vec![
                        t.id.to_string(),
                        t.user,
                        t.name,
                        state,
                        t.last_used_at.map_or_else(|| "never".to_owned(), |at| ago(now, at)),
                    ]
                })
                .collect();
            ctx.table(&["id", "user", "name", "state", "last used"], rows);
        }
        Verb::Revoke { id, yes } => {
            ctx.confirm(yes, &format!("revoke token {id}; whoever uses it is refused from now on"))?;
            if !tenant::revoke_token(&db, id).await? {
                bail!("there is no valid token {id}: see `steadfast token ls`");
            }
            if ctx.json {
                ctx.show(&json!({ "revoked": id }))?
            } else {
                say(format_args!("token {id} is revoked"));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// One address, as far as that can be told without asking its server; what is given is not repeated.
fn address(text: &str) -> Result<String, String> {
    let text = text.trim();
    let sane = text.len() <= 254
        && !text
            .chars()
            .any(|c| c.is_control() || c.is_whitespace() || matches!(c, ',' | ';' | '<' | '>'));
    match text.rsplit_once('@') {
        Some((local, domain)) if sane && !local.is_empty() && !domain.is_empty() => Ok(text.to_owned()),
        _ => Err("one address, like ann@example.org".to_owned()),
    }
}

/// A Space that the user is a member of already. Another one by default would make every later `add` ambiguous.
async fn first_space(db: &queue_schema::Db, user: &str) -> Result<Option<String>> {
    let Some(scope) = tenant::operator_scope(db, tenant::DEFAULT_TENANT, user).await? else {
        return Ok(None);
    };
    let mut tx = db.begin().await?;
    Ok(tenant::spaces(&mut tx, &scope).await?.into_iter().next().map(|s| s.name))
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn an_address_is_one_address() {
        assert_eq!(address(" ann@example.org ").expect("one"), "ann@example.org");
        for wrong in [
            "",
            "ann",
            "@example.org",
            "ann@",
            "ann@a, bob@b",
            "Ann <ann@a>",
            "a@b\nBcc: c@d",
            &format!("{}@b", "a".repeat(254)),
        ] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }
}
