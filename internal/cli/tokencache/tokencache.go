// Package tokencache keeps the tokens that kubectl asked for until shortly before
// they end, because kubectl itself forgets them when it exits. It keeps law 8:
// a token lies in one file that its owner alone can read, in memory where the
// system has a place for that, and goes with the sign-in; trouble with the
// cache is never an error, only a request to the server.
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

// A Credential is a token and when it ends; the zero time is not known, and such
// a credential is not kept.
type Credential struct {
	Token   signin.Token
	Expires time.Time
}

// A Key says what a token is for. A token is given out only for the very key it
// was kept for.
type Key struct {
	Server     string // URL of the access server
	Cluster    string
	ClusterKey string // by which the server proves itself
	CASHA256   string // of the cluster's authority
	Login      string
	Role       string
	Namespaces []string
}

// place is the name of the file: one for each cluster of each server, so that a
// token of another role takes the place of the last one.
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

// A Cache is one or more folders, of which the first that can be used is. Both
// fields are required.
type Cache struct {
	Folders []string // absolute paths
	Now     func() time.Time
}

// lockWait bounds how long one program waits for another one's request.
const lockWait = 10 * time.Second

// Get returns the token for key: the one that is kept, or else one from fetch,
// which is kept then. Of any number of programs that ask at once, one fetches.
//
// asker names the process that wants the token, and no other one ever: who is
// given a token twice must have been refused with it, as the program that runs
// this one keeps what it is given. Then the token is fetched anew.
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
	if cred, ok := f.serve(c.Now(), asker); ok { // somebody else was at it
		return cred, nil
	}
	f.drop()
	cred, err := fetch(ctx)
	if err == nil {
		f.keep(c.Now(), cred, asker)
	}
	return cred, err
}

// Drop forgets the tokens for a cluster of a server.
func (c Cache) Drop(server, cluster string) error {
	var errs []error
	for _, dir := range c.Folders {
		if usable(dir) != nil {
			continue // nothing of ours is in there
		}
		f := file{path: filepath.Join(dir, subfolder, place(server, cluster))}
		errs = append(errs, f.drop())
		// The lock goes too, unless another program is at work.
		if held, err := ownfile.Hold(f.path + ".lock"); err == nil && held != nil {
			errs = append(errs, f.drop(), os.Remove(f.path+".lock"))
			held.Release()
		}
	}
	return errors.Join(errs...)
}

const subfolder = "tokens"

// A file is where one cluster's token is.
type file struct {
	path string // without the endings
	id   string // of the key
}

func (f file) entry() string  { return f.path + ".json" }
func (f file) askers() string { return f.path + ".askers" }

// open finds the folder. It is made if need be, and has to be ours alone.
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

// usable reports why the tokens of dir are not trusted. Its parts must be folders
// of our own, which nobody else can write into or read.
func usable(dir string) error {
	for _, d := range []string{dir, filepath.Join(dir, subfolder)} {
		if err := ownfile.CheckFolder(d); err != nil {
			return err
		}
	}
	return nil
}

// kept is the form of the file.
type kept struct {
	Key     string    `json:"key"`
	Since   time.Time `json:"since"`
	Expires time.Time `json:"expires"`
	Token   string    `json:"token"`
}

// fresh reports whether a token is good enough to be given out: it is replaced
// 60 seconds before its end, or at the last quarter of its life if that is less.
func (k kept) fresh(now time.Time) bool {
	margin := min(time.Minute, k.Expires.Sub(k.Since)/4)
	return !now.Before(k.Since) && now.Before(k.Expires.Add(-margin)) && reach.CheckToken(signin.NewToken(k.Token)) == nil
}

// serve gives out the token that is kept, unless asker had it before. What is
// damaged, foreign or for something else is as nothing.
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
	if f.note(mark) != nil { // it could not be told apart from a second time
		return Credential{}, false
	}
	// Who had it goes after the token: if that is still there, nobody was forgotten
	// while we looked.
	if now, err := ownfile.Read(f.entry()); err != nil || !bytes.Equal(now, text) {
		return Credential{}, false
	}
	return Credential{signin.NewToken(k.Token), k.Expires}, true
}

// mark is a line that says that asker was given this token.
func (k kept) mark(asker string) string { return digest(k.Token, asker)[:32] + "\n" }

// had reports whether a mark was noted.
func (f file) had(mark string) (bool, error) {
	text, err := ownfile.Read(f.askers())
	return slices.Contains(slices.Collect(strings.Lines(string(text))), mark), err
}

// mostMarks bounds the file of marks, in bytes. Beyond it the oldest programs are
// forgotten, which costs those that are refused later one more failure.
const mostMarks = 64 << 10

// note adds a mark, in one write, so that programs do not disturb each other.
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

// keep writes a token down, if it can be, and that asker has it.
func (f file) keep(now time.Time, c Credential, asker string) {
	k := kept{Key: f.id, Since: now, Expires: c.Expires, Token: c.Token.Reveal()}
	if c.Expires.IsZero() || !k.fresh(now) {
		return
	}
	text, err := json.Marshal(k)
	if err == nil && f.note(k.mark(asker)) == nil {
		_ = ownfile.Write(f.entry(), text) // the next program asks the server then
	}
}

// drop removes the token and then who had it.
func (f file) drop() error {
	var errs []error
	for _, path := range []string{f.entry(), f.askers()} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove the token: %w", err))
		}
	}
	return errors.Join(errs...)
}

// lock keeps other programs from fetching at the same time. While it waits, it
// asks enough whether there is still a reason to.
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
