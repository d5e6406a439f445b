// Package tokencache stores the tokens of kubectl's plugin until shortly before they expire, because kubectl forgets them when it exits. It
// keeps law 8: a token is in one file that only its owner can read, in memory if the system has a place for that. The token is removed with
// the sign-in. A failure of the cache is never an error; it only causes a request to the server.
package tokencache

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

	"github.com/tailplane/tailplane/internal/cli/ownfile"
	"github.com/tailplane/tailplane/internal/cli/reach"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// A Credential is a token with its expiry. The zero time means unknown; such a credential is not stored.
type Credential struct {
	Token   signin.Token
	Expires time.Time
}

// A Key identifies the use of a token. The cache returns a token only for exactly the key that it was stored for.
type Key struct {
	Server     string // URL of the access server
	Cluster    string
	ClusterKey string // the key that the server proves
	CASHA256   string // of the cluster's authority
	Login      string
	Role       string
	Namespaces []string
}

// place returns the name of the file. There is one for each cluster of each server, so a token of another role replaces the previous one.
func place(server, cluster string) string { return digest(server, cluster)[:32] }

func (k Key) id() string {
	return digest(append([]string{k.Server, k.Cluster, k.ClusterKey, k.CASHA256, k.Login, k.Role}, k.Namespaces...)...)
}

func digest(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(p))))
		h.Write([]byte(p))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// A Cache is a list of folders, of which the first usable one is used. Both fields are required.
type Cache struct {
	Folders []string // absolute paths
	Now     func() time.Time
}

// lockWait bounds how long one program waits for another program's request.
const lockWait = 10 * time.Second

// Get returns the stored token for key, or else a token from fetch, which it then stores. If several programs call Get at the same time,
// only one of them fetches.
//
// asker is the name of the process that needs the token; it must be unique over time. That process keeps the token that it gets. If it
// requests the token again, the API server must have refused the stored one, so Get fetches a new one.
func (c Cache) Get(ctx context.Context, key Key, asker string, fetch func(context.Context) (Credential, error)) (Credential, error) {
	f, err := c.open(key)
	if err != nil {
		return fetch(ctx)
	}
	if cred, ok := f.serve(c.Now(), asker); ok {
		return cred, nil
	}
	var served *Credential
	unlock, err := f.lock(ctx, lockWait, func() bool {
		cred, ok := f.serve(c.Now(), asker)
		if ok {
			served = &cred
		}
		return ok
	})
	switch {
	case served != nil:
		return *served, nil
	case ctx.Err() != nil:
		return Credential{}, ctx.Err()
	case err != nil:
		return fetch(ctx)
	}
	defer unlock()
	if cred, ok := f.serve(c.Now(), asker); ok { // another program has fetched it
		return cred, nil
	}
	f.drop()
	cred, err := fetch(ctx)
	if err == nil {
		f.keep(c.Now(), cred, asker)
	}
	return cred, err
}

// Drop removes the tokens for a cluster of a server.
func (c Cache) Drop(server, cluster string) error {
	var errs []error
	for _, dir := range c.Folders {
		if usable(dir) != nil {
			continue // it has no tokens of this user
		}
		f := file{path: filepath.Join(dir, subfolder, place(server, cluster))}
		errs = append(errs, f.drop())
		// Remove the lock file too, unless another program holds it.
		if held, err := ownfile.Hold(f.path + ".lock"); err == nil && held != nil {
			errs = append(errs, f.drop(), os.Remove(f.path+".lock"))
			held.Release()
		}
	}
	return errors.Join(errs...)
}

const subfolder = "tokens"

// A file is the storage of one cluster's token.
type file struct {
	path string // without the extensions
	id   string // of the key
}

func (f file) entry() string  { return f.path + ".json" }
func (f file) askers() string { return f.path + ".askers" }

// open returns the file in the first usable folder. It creates the folder if needed; the folder must be private to this user.
func (c Cache) open(key Key) (file, error) {
	err := errors.New("there is no folder for tokens")
	for _, dir := range c.Folders {
		if !filepath.IsAbs(dir) {
			continue
		}
		if err = os.MkdirAll(filepath.Join(dir, subfolder), 0o700); err == nil {
			err = usable(dir)
		}
		if err == nil {
			return file{filepath.Join(dir, subfolder, place(key.Server, key.Cluster)), key.id()}, nil
		}
	}
	return file{}, err
}

// usable returns why the tokens in dir cannot be trusted. dir and its subfolder must be folders of this user that other users can neither
// read nor write.
func usable(dir string) error {
	for _, d := range []string{dir, filepath.Join(dir, subfolder)} {
		if err := ownfile.CheckFolder(d); err != nil {
			return err
		}
	}
	return nil
}

// kept is the content of the file.
type kept struct {
	Key     string    `json:"key"`
	Since   time.Time `json:"since"`
	Expires time.Time `json:"expires"`
	Token   string    `json:"token"`
}

// fresh reports whether a token may still be returned. Get replaces a token 60 seconds before its end, or in the last quarter of its
// lifetime if that is shorter.
func (k kept) fresh(now time.Time) bool {
	margin := min(time.Minute, k.Expires.Sub(k.Since)/4)
	return !now.Before(k.Since) && now.Before(k.Expires.Add(-margin)) && reach.CheckToken(signin.NewToken(k.Token)) == nil
}

// serve returns the stored token, unless asker got it before. It ignores a file that is damaged, belongs to another user or is for another
// key.
func (f file) serve(now time.Time, asker string) (Credential, bool) {
	text, err := ownfile.Read(f.entry())
	if err != nil || text == nil {
		return Credential{}, false
	}
	var k kept
	if json.Unmarshal(text, &k) != nil || k.Key != f.id || !k.fresh(now) {
		return Credential{}, false
	}
	mark := k.mark(asker)
	if had, err := f.had(mark); had || err != nil {
		return Credential{}, false
	}
	if f.note(mark) != nil { // a second request of asker could not be detected
		return Credential{}, false
	}
	// drop removes the token first and then the marks. If the token is still there, no mark was lost meanwhile.
	if now, err := ownfile.Read(f.entry()); err != nil || !bytes.Equal(now, text) {
		return Credential{}, false
	}
	return Credential{signin.NewToken(k.Token), k.Expires}, true
}

// mark returns a line that records that asker got this token.
func (k kept) mark(asker string) string { return digest(k.Token, asker)[:32] + "\n" }

// had reports whether a mark was recorded.
func (f file) had(mark string) (bool, error) {
	text, err := ownfile.Read(f.askers())
	return slices.Contains(slices.Collect(strings.Lines(string(text))), mark), err
}

// mostMarks bounds the file of marks, in bytes. Beyond it, all marks are dropped; a process whose token is refused later may then get it
// once more.
const mostMarks = 64 << 10

// note appends a mark in one write, so that programs do not disturb each other.
func (f file) note(mark string) error {
	if err := ownfile.Check(f.askers()); err != nil {
		return err
	}
	flags := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	if st, err := os.Lstat(f.askers()); err == nil && st.Size() >= mostMarks {
		flags |= os.O_TRUNC
	}
	w, err := os.OpenFile(f.askers(), flags, 0o600)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, mark)
	return errors.Join(err, w.Close())
}

// keep stores a token, if possible, and records that asker has it.
func (f file) keep(now time.Time, c Credential, asker string) {
	k := kept{Key: f.id, Since: now, Expires: c.Expires, Token: c.Token.Reveal()}
	if c.Expires.IsZero() || !k.fresh(now) {
		return
	}
	text, err := json.Marshal(k)
	if err == nil && f.note(k.mark(asker)) == nil {
		_ = ownfile.Write(f.entry(), text) // if this fails, the next program queries the server
	}
}

// drop removes the token and then the marks.
func (f file) drop() error {
	var errs []error
	for _, path := range []string{f.entry(), f.askers()} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove the token: %w", err))
		}
	}
	return errors.Join(errs...)
}

// lock prevents other programs from fetching at the same time. While it waits, it calls enough to check whether the token is available.
func (f file) lock(ctx context.Context, limit time.Duration, enough func() bool) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for again := 2 * time.Millisecond; ; again = min(2*again, 50*time.Millisecond) {
		l, err := ownfile.Hold(f.path + ".lock")
		if err != nil || l != nil {
			return l.Release, err
		}
		if err := retry.Sleep(ctx, again); err != nil {
			return nil, err
		}
		if enough() {
			return nil, errors.New("the token is there")
		}
	}
}
