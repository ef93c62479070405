//! Bytes outside the row, stored before the row exists (requirement P13). A row may therefore trust its key; a key without a
//! row is an orphan, and retention collects it after a day (decision B50).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::TryStreamExt as _;
use object_store::aws::AmazonS3Builder;
use object_store::buffered::BufWriter;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{ClientOptions, Error as StoreError, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload, RetryConfig};
use rand::RngExt as _;
use tokio::io::AsyncWriteExt as _;
use url::Url;

/// How much of one upload is held in memory before it goes out as a part; S3 wants at least 5 MiB.
const PART: usize = 8 << 20;

/// Why bytes were not stored or not to be had.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// The bytes under this key are gone; trying again will not bring them back.
    #[error("there is nothing under the key {0}")]
    NotFound(String),
    /// The store did not answer or refused; the same may work later.
    #[error("the blob store is not available: {0}")]
    Unavailable(String),
    /// The address of the store cannot be used as it is.
    #[error("{0}")]
    Url(String),
}

impl BlobError {
    fn of(key: &Path, e: &StoreError) -> Self {
        match e {
            StoreError::NotFound { .. } => Self::NotFound(key.to_string()),
            other => Self::Unavailable(crate::outcome::sanitise(&other.to_string())),
        }
    }
}

/// A folder or a bucket.
#[derive(Clone, Debug)]
pub struct Blobs {
    store: Arc<dyn ObjectStore>,
}

impl Blobs {
    /// `file:///dir` (made with mode 0700 when missing; relative as `file://./dir`) or `s3://bucket/prefix`.
    ///
    /// For S3: keys from `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY` (`AWS_SESSION_TOKEN` if there is one), the rest from
    /// the URL's query or the environment: `endpoint` or `STEADFAST_S3_ENDPOINT`, `region` or `AWS_REGION` (us-east-1).
    /// Paths are `endpoint/bucket/key` when an endpoint is given. Plain http is spoken with a loopback endpoint only.
    ///
    /// # Errors
    /// [`BlobError::Url`] with what is wrong, [`BlobError::Unavailable`] when the folder cannot be made.
    pub fn open(url: &str) -> Result<Self, BlobError> {
        // Before the URL parser, to which `file://./dir` is a host named "."
        if let Some(path) = url.strip_prefix("file://") {
            return Self::folder(&PathBuf::from(path));
        }
        let parsed = Url::parse(url).map_err(|e| {
            BlobError::Url(format!(
                "the blob store's address is not a URL ({e}): use file:///dir or s3://bucket/prefix"
            ))
        })?;
        match parsed.scheme() {
            "s3" => Self::bucket(&parsed),
            other => Err(BlobError::Url(format!(
                "blob stores at {other}: are not known: use file:///dir or s3://bucket/prefix"
            ))),
        }
    }

    fn folder(dir: &std::path::Path) -> Result<Self, BlobError> {
        use std::os::unix::fs::DirBuilderExt as _;
        let unavailable = |e: std::io::Error| BlobError::Unavailable(format!("the folder {} cannot be used: {e}", dir.display()));
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(unavailable)?;
        let dir = dir.canonicalize().map_err(unavailable)?;
        let store = LocalFileSystem::new_with_prefix(&dir).map_err(|e| BlobError::Unavailable(e.to_string()))?;
        // A row is committed after the bytes: they must be as durable as it is.
        Ok(Self {
            store: Arc::new(store.with_fsync(true)),
        })
    }

    fn bucket(url: &Url) -> Result<Self, BlobError> {
        let env = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
        let query = |name: &str| url.query_pairs().find(|(k, _)| k == name).map(|(_, v)| v.into_owned());
        for (k, _) in url.query_pairs() {
            if !matches!(&*k, "endpoint" | "region") {
                return Err(BlobError::Url(format!(
                    "the blob store's address has an unknown setting {k:?}: endpoint and region are known"
                )));
            }
        }
        let bucket = url
            .host_str()
            .filter(|h| !h.is_empty())
            .ok_or_else(|| BlobError::Url("the blob store's address names no bucket: s3://bucket/prefix".into()))?;
        let key = |name| env(name).ok_or_else(|| BlobError::Url(format!("an s3:// blob store needs {name} in the environment")));
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(bucket)
            .with_access_key_id(key("AWS_ACCESS_KEY_ID")?)
            .with_secret_access_key(key("AWS_SECRET_ACCESS_KEY")?)
            .with_region(query("region").or_else(|| env("AWS_REGION")).unwrap_or_else(|| "us-east-1".into()))
            .with_retry(RetryConfig {
                max_retries: 2,
                retry_timeout: Duration::from_secs(20),
                ..RetryConfig::default()
            });
        let mut client = ClientOptions::new()
            .with_connect_timeout(Duration::from_secs(5))
            .with_timeout(Duration::from_secs(60));
        if let Some(token) = env("AWS_SESSION_TOKEN") {
            builder = builder.with_token(token);
        }
        if let Some(endpoint) = query("endpoint").or_else(|| env("STEADFAST_S3_ENDPOINT")) {
            let parsed = Url::parse(&endpoint).map_err(|e| BlobError::Url(format!("the S3 endpoint {endpoint:?} is not a URL: {e}")))?;
            if parsed.scheme() == "http" {
                if !is_loopback(&parsed) {
                    return Err(BlobError::Url(format!(
                        "the S3 endpoint {endpoint} would carry documents over plain http: use https"
                    )));
                }
                client = client.with_allow_http(true);
            }
            builder = builder
                .with_endpoint(endpoint.trim_end_matches('/'))
                .with_virtual_hosted_style_request(false);
        }
        // Whoever was first stays; we only need that there is one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let store = builder
            .with_client_options(client)
            .build()
            .map_err(|e| BlobError::Url(format!("the S3 blob store cannot be set up: {e}")))?;
        let prefix = url.path().trim_matches('/');
        Ok(Self {
            store: if prefix.is_empty() {
                Arc::new(store)
            } else {
                Arc::new(PrefixStore::new(store, prefix))
            },
        })
    }

    /// Stores bytes under a new key and says which.
    ///
    /// # Errors
    /// When the store does not take them; then there is no key.
    pub async fn put(&self, tenant_id: i64, bytes: Bytes) -> Result<String, BlobError> {
        let key = new_key(tenant_id);
        // Create-only: a key is never written twice, whatever the generator does.
        let options = PutOptions {
            mode: PutMode::Create,
            ..PutOptions::default()
        };
        self.store
            .put_opts(&key, PutPayload::from_bytes(bytes), options)
            .await
            .map_err(|e| BlobError::of(&key, &e))?;
        Ok(key.to_string())
    }

    /// A writer for bytes that arrive piece by piece; it holds a few parts of 8 MiB at most.
    #[must_use]
    pub fn writer(&self, tenant_id: i64) -> BlobWriter {
        let key = new_key(tenant_id);
        let inner = BufWriter::with_capacity(self.store.clone(), key.clone(), PART).with_max_concurrency(2);
        BlobWriter { key, inner }
    }

    /// # Errors
    /// [`BlobError::NotFound`] or [`BlobError::Unavailable`].
    pub async fn get(&self, key: &str) -> Result<Bytes, BlobError> {
        let path = Path::from(key);
        let found = self.store.get(&path).await.map_err(|e| BlobError::of(&path, &e))?;
        found.bytes().await.map_err(|e| BlobError::of(&path, &e))
    }

    /// Removes what is under a key; nothing there is fine too.
    ///
    /// # Errors
    /// [`BlobError::Unavailable`].
    pub async fn delete(&self, key: &str) -> Result<(), BlobError> {
        let path = Path::from(key);
        match self.store.delete(&path).await {
            Ok(()) | Err(StoreError::NotFound { .. }) => Ok(()),
            Err(e) => Err(BlobError::of(&path, &e)),
        }
    }

    /// At most `limit` keys stored before now minus `age`, by the store's clock against `now` (the database's): the candidates
    /// for collection.
    ///
    /// # Errors
    /// [`BlobError::Unavailable`].
    pub async fn list_older_than(&self, now: DateTime<Utc>, age: Duration, limit: usize) -> Result<Vec<String>, BlobError> {
        let unavailable = |e: StoreError| BlobError::Unavailable(crate::outcome::sanitise(&e.to_string()));
        let mut keys = Vec::new();
        let mut listing = self.store.list(None);
        while let Some(found) = listing.try_next().await.map_err(unavailable)? {
            let stored_for = now.signed_duration_since(found.last_modified).to_std().unwrap_or(Duration::ZERO);
            if stored_for > age {
                keys.push(found.location.to_string());
                if keys.len() >= limit {
                    break;
                }
            }
        }
        Ok(keys)
    }

    /// Whether the store answers: a look for a key that nobody has.
    ///
    /// # Errors
    /// [`BlobError::Unavailable`].
    pub async fn ping(&self) -> Result<(), BlobError> {
        let path = Path::from("steadfast-is-it-there");
        match self.store.head(&path).await {
            Ok(_) | Err(StoreError::NotFound { .. }) => Ok(()),
            Err(e) => Err(BlobError::of(&path, &e)),
        }
    }
}

/// An upload under way. Nothing is to be seen under its key before [`BlobWriter::finish`].
pub struct BlobWriter {
    key: Path,
    inner: BufWriter,
}

impl std::fmt::Debug for BlobWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlobWriter").field("key", &self.key).finish_non_exhaustive()
    }
}

impl BlobWriter {
    /// # Errors
    /// [`BlobError::Unavailable`]; the upload is then over.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), BlobError> {
        self.inner.put(bytes).await.map_err(|e| BlobError::of(&self.key, &e))
    }

    /// Makes the bytes durable and says under which key.
    ///
    /// # Errors
    /// [`BlobError::Unavailable`]; then there is no key.
    pub async fn finish(mut self) -> Result<String, BlobError> {
        self.inner
            .shutdown()
            .await
            .map_err(|e| BlobError::Unavailable(crate::outcome::sanitise(&e.to_string())))?;
        Ok(self.key.to_string())
    }

    /// Gives up; parts already sent are removed. Failing at that leaves only what the store's own housekeeping sweeps.
    pub async fn abort(mut self) {
        if let Err(error) = self.inner.abort().await {
            tracing::debug!(%error, "an abandoned upload left parts behind");
        }
    }
}

/// `t<tenant>/<2 hex>/<30 hex more>`: random, so that it tells nothing, and spread over 256 folders.
fn new_key(tenant_id: i64) -> Path {
    let name = hex::encode(rand::rng().random::<[u8; 16]>());
    Path::from(format!("t{tenant_id}/{}/{name}", &name[..2]))
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Domain(d)) => d == "localhost",
        Some(url::Host::Ipv4(a)) => a.is_loopback(),
        Some(url::Host::Ipv6(a)) => a.is_loopback(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir() -> PathBuf {
        std::env::temp_dir().join(format!("steadfast-blobs-{}", hex::encode(rand::rng().random::<[u8; 8]>())))
    }

    #[tokio::test]
    async fn bytes_come_back_and_a_missing_key_says_so() {
        let dir = dir();
        let blobs = Blobs::open(&format!("file://{}", dir.display())).expect("a folder can be made here");
        let small = blobs.put(1, Bytes::from_static(b"small")).await.expect("stored");
        assert_eq!(blobs.get(&small).await.expect("there"), "small");

        let mut w = blobs.writer(1);
        for _ in 0..20 {
            w.write(Bytes::from(vec![7_u8; 1 << 20])).await.expect("written");
        }
        let large = w.finish().await.expect("stored");
        assert_eq!(blobs.get(&large).await.expect("there").len(), 20 << 20);

        blobs.delete(&small).await.expect("deleted");
        blobs.delete(&small).await.expect("twice is fine");
        assert!(matches!(blobs.get(&small).await, Err(BlobError::NotFound(_))));
        let _ = std::fs::remove_dir_all(dir);
    }

    #[test]
    fn an_address_that_cannot_work_says_what_would() {
        for bad in ["nonsense", "ftp://x/y", "s3://bucket?colour=red"] {
            assert!(matches!(Blobs::open(bad), Err(BlobError::Url(_))), "{bad}");
        }
    }
}
