fn main() {
    // migrate! embeds the files; cargo does not see a new one by itself.
    println!("cargo:rerun-if-changed=sql");
}
