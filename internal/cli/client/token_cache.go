package client

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/util/safefile"
	"github.com/tailplane/tailplane/internal/util/secret"
)

// A CachedToken is a token with its expiry. The zero time means unknown; such a token is not stored.
type CachedToken struct {
	Token   secret.Text
	Expires time.Time
}

// A TokenKey identifies the use of a token. The cache returns a token only for exactly the key that it was stored for.
type TokenKey struct {
	Server     string // URL of the access server
	Cluster    string
	ClusterKey string // the key that the server proves
	CASHA256   string // of the cluster's authority
	Login      string
	Node       string // identifies this machine's node in the tailnet; "": unknown
	Session    string
	Role       string
	Namespaces []string
}

// tokenFileName returns the name of the file. There is one for each session of each cluster of each server, so a token of another role
// replaces the previous one.
func tokenFileName(server, cluster, session string) string {
	if session == "" {
		return digestOf(server, cluster)[:32]
	}
	return digestOf(server, cluster, session)[:32]
}

func (k TokenKey) digest() string {
	return digestOf(append([]string{k.Server, k.Cluster, k.ClusterKey, k.CASHA256, k.Login, k.Node, k.Session, k.Role}, k.Namespaces...)...)
}

func digestOf(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(p))))
		h.Write([]byte(p))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// A TokenCache is a list of directories, of which the first usable one is used. Both fields are required.
type TokenCache struct {
	Dirs []string // absolute paths
	Now  func() time.Time
}

// fetchWait bounds how long one program waits for another program's request.
const fetchWait = 10 * time.Second

// Get returns the stored token for key, or else a token from fetch, which it then stores. If several programs call Get at the same time,
// only one of them fetches.
//
// requester is the name of the process that needs the token; it must be unique over time. That process keeps the token that it gets. If it
// requests the token again, the API server must have refused the stored one, so Get fetches a new one.
func (c TokenCache) Get(ctx context.Context, key TokenKey, requester string, fetch func(context.Context) (CachedToken, error)) (CachedToken, error) {
	f, err := c.open(key)
	if err != nil {
		return fetch(ctx)
	}
	c.Sweep()
	if cred, ok := f.load(c.Now(), requester); ok {
		return cred, nil
	}
	lock, err := safefile.WaitFlock(ctx, f.path+".lock", fetchWait) // only one program at a time fetches
	switch {
	case ctx.Err() != nil:
		return CachedToken{}, ctx.Err()
	case err != nil:
		return fetch(ctx)
	}
	defer lock.Release()
	if cred, ok := f.load(c.Now(), requester); ok { // another program has fetched it
		return cred, nil
	}
	f.delete()
	cred, err := fetch(ctx)
	if err == nil {
		f.store(c.Now(), cred, requester)
	}
	return cred, err
}

// Delete removes the token for a session of a cluster of a server, also one that a killed program was about to store.
func (c TokenCache) Delete(server, cluster, session string) error {
	c.Sweep()
	var errs []error
	for _, dir := range c.Dirs {
		if checkTokenDir(dir) != nil {
			continue // it has no tokens of this user
		}
		f := tokenFile{path: filepath.Join(dir, tokensDir, tokenFileName(server, cluster, session))}
		errs = append(errs, safefile.RemoveStaged(f.tokenPath()), f.delete())
		// Remove the lock file too, unless another program holds it.
		if flock, err := safefile.TryFlock(f.path + ".lock"); err == nil && flock != nil {
			errs = append(errs, f.delete(), os.Remove(f.path+".lock"))
			flock.Release()
		}
	}
	return errors.Join(errs...)
}

// Sweep removes what killed programs left in the cache.
func (c TokenCache) Sweep() {
	for _, dir := range c.Dirs {
		if checkTokenDir(dir) == nil {
			_ = safefile.SweepStaged(filepath.Join(dir, tokensDir)) // the next run tries again
		}
	}
}

const tokensDir = "tokens"

// A tokenFile is the storage of one cluster's token.
type tokenFile struct {
	path      string // without the extensions
	keyDigest string // of the key
}

func (f tokenFile) tokenPath() string    { return f.path + ".json" }
func (f tokenFile) receiptsPath() string { return f.path + ".askers" }

// open returns the file in the first usable directory. It creates the directory if needed; the directory must be private to this user.
func (c TokenCache) open(key TokenKey) (tokenFile, error) {
	err := errors.New("no directory for tokens")
	for _, dir := range c.Dirs {
		if !filepath.IsAbs(dir) {
			continue
		}
		if err = os.MkdirAll(filepath.Join(dir, tokensDir), 0o700); err == nil {
			err = checkTokenDir(dir)
		}
		if err == nil {
			return tokenFile{filepath.Join(dir, tokensDir, tokenFileName(key.Server, key.Cluster, key.Session)), key.digest()}, nil
		}
	}
	return tokenFile{}, err
}

// checkTokenDir returns why the tokens in dir cannot be trusted. dir and its subdirectory must be directories of this user that other users can
// neither read nor write.
func checkTokenDir(dir string) error {
	for _, d := range []string{dir, filepath.Join(dir, tokensDir)} {
		if err := safefile.EnsurePrivateDir(d); err != nil {
			return err
		}
	}
	return nil
}

// storedToken is the content of the file.
type storedToken struct {
	Key     string    `json:"key"`
	Since   time.Time `json:"since"`
	Expires time.Time `json:"expires"`
	Token   string    `json:"token"`
}

// fresh reports whether a token may still be returned. Get replaces a token 60 seconds before its end, or in the last quarter of its
// lifetime if that is shorter.
func (k storedToken) fresh(now time.Time) bool {
	margin := min(time.Minute, k.Expires.Sub(k.Since)/4)
	return !now.Before(k.Since) && now.Before(k.Expires.Add(-margin)) && CheckToken(secret.New(k.Token)) == nil
}

// load returns the stored token, unless requester got it before. It ignores a file that is damaged, belongs to another user or is for
// another key.
func (f tokenFile) load(now time.Time, requester string) (CachedToken, bool) {
	text, err := safefile.Read(f.tokenPath())
	if err != nil || text == nil {
		return CachedToken{}, false
	}
	var k storedToken
	if json.Unmarshal(text, &k) != nil || k.Key != f.keyDigest || !k.fresh(now) {
		return CachedToken{}, false
	}
	receipt := k.receipt(requester)
	receipts, err := safefile.Read(f.receiptsPath())
	if err != nil || slices.Contains(slices.Collect(strings.Lines(string(receipts))), receipt) {
		return CachedToken{}, false
	}
	if f.addReceipt(receipt) != nil { // a second request of requester could not be detected
		return CachedToken{}, false
	}
	// delete removes the token first and then the receipts. If the token is still there, no receipt was lost meanwhile.
	if now, err := safefile.Read(f.tokenPath()); err != nil || !bytes.Equal(now, text) {
		return CachedToken{}, false
	}
	return CachedToken{secret.New(k.Token), k.Expires}, true
}

// receipt returns a line that records that requester got this token.
func (k storedToken) receipt(requester string) string {
	return digestOf(k.Token, requester)[:32] + "\n"
}

// maxReceiptBytes bounds the file of receipts, in bytes. Beyond it, all receipts are dropped; a process whose token is refused later may
// then get it once more.
const maxReceiptBytes = 64 << 10

// addReceipt appends a receipt in one write, so that programs do not disturb each other.
func (f tokenFile) addReceipt(receipt string) error {
	if err := safefile.Check(f.receiptsPath()); err != nil {
		return err
	}
	flags := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	if st, err := os.Lstat(f.receiptsPath()); err == nil && st.Size() >= maxReceiptBytes {
		flags |= os.O_TRUNC
	}
	w, err := os.OpenFile(f.receiptsPath(), flags, 0o600)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, receipt)
	return errors.Join(err, w.Close())
}

// store stores a token, if possible, and records that requester has it.
func (f tokenFile) store(now time.Time, c CachedToken, requester string) {
	k := storedToken{Key: f.keyDigest, Since: now, Expires: c.Expires, Token: c.Token.Reveal()}
	if c.Expires.IsZero() || !k.fresh(now) {
		return
	}
	text, err := json.Marshal(k)
	if err == nil && f.addReceipt(k.receipt(requester)) == nil {
		_ = safefile.Write(f.tokenPath(), text) // if this fails, the next program queries the server
	}
}

// delete removes the token and then the receipts.
func (f tokenFile) delete() error {
	var errs []error
	for _, path := range []string{f.tokenPath(), f.receiptsPath()} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove the token: %w", err))
		}
	}
	return errors.Join(errs...)
}
