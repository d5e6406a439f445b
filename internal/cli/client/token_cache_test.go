package client_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tailplane/tailplane/internal/cli/client"
	"github.com/tailplane/tailplane/internal/util/secret"
)

const tokenText = "eyJSECRET"

// A tokenServer issues tokens and counts them.
type tokenServer struct {
	life     time.Duration
	now      func() time.Time
	requests atomic.Int32
	fails    error
}

func (s *tokenServer) fetch(context.Context) (client.CachedToken, error) {
	n := s.requests.Add(1)
	if s.fails != nil {
		return client.CachedToken{}, s.fails
	}
	c := client.CachedToken{Token: secret.New(fmt.Sprintf("%s-%d", tokenText, n))}
	if s.life != 0 {
		c.Expires = s.now().Add(s.life)
	}
	return c, nil
}

type env struct {
	*tokenServer
	t     *testing.T
	cache client.TokenCache
	clock time.Time
	key   client.TokenKey
	n     int
}

func newEnv(t *testing.T, life time.Duration) *env {
	e := &env{t: t, clock: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC), key: client.TokenKey{Server: "https://tka", Cluster: "c", Login: "alice@example.com", Role: "view"}}
	now := func() time.Time { return e.clock }
	e.tokenServer = &tokenServer{life: life, now: now}
	e.cache = client.TokenCache{Dirs: []string{filepath.Join(t.TempDir(), "tka")}, Now: now}
	return e
}

// get requests a token as a new process, or as the named one.
func (e *env) get(requester ...string) string {
	e.t.Helper()
	if len(requester) == 0 {
		e.n++
		requester = []string{fmt.Sprint("another ", e.n)}
	}
	c, err := e.cache.Get(e.t.Context(), e.key, requester[0], e.fetch)
	if err != nil {
		e.t.Fatal(err)
	}
	return c.Token.Reveal()
}

// checkRequests checks which request the next token comes from.
func (e *env) checkRequests(n int, why string, requester ...string) {
	e.t.Helper()
	if got, want := e.get(requester...), fmt.Sprintf("%s-%d", tokenText, n); got != want {
		e.t.Errorf("token %s, want %s: %s", got, want, why)
	}
}

func (e *env) files() (files []string) {
	e.t.Helper()
	err := filepath.WalkDir(e.cache.Dirs[0], func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		want := fs.FileMode(0o600)
		if d.IsDir() {
			want = 0o700
		} else {
			files = append(files, path)
		}
		if err == nil && st.Mode().Perm() != want {
			e.t.Errorf("%s has mode %v", path, st.Mode())
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		e.t.Fatal(err)
	}
	return files
}

// conventions 2: a token is replaced 60 s before its end or in the last quarter of its life, whichever is shorter.
func TestTokenRenewalMargin(t *testing.T) {
	for _, tt := range []struct {
		life, at time.Duration
		request  int
		why      string
	}{
		{8 * time.Hour, 0, 1, "fresh"},
		{8 * time.Hour, 8*time.Hour - 61*time.Second, 1, "more than a minute is left"},
		{8 * time.Hour, 8*time.Hour - 60*time.Second, 2, "a minute is left"},
		{8 * time.Hour, 9 * time.Hour, 2, "over"},
		{2 * time.Minute, 89 * time.Second, 1, "more than a quarter is left of a short life"},
		{2 * time.Minute, 90 * time.Second, 2, "a quarter is left of a short life"},
		{8 * time.Hour, -time.Second, 2, "the clock went back: how old it is cannot be known"},
		{0, 0, 2, "its end is not known, so it is not kept"},
	} {
		e := newEnv(t, tt.life)
		e.checkRequests(1, "first")
		e.clock = e.clock.Add(tt.at)
		e.checkRequests(tt.request, fmt.Sprintf("life %v, after %v: %s", tt.life, tt.at, tt.why))
	}
}

// The cache does not return a token for another key.
func TestTokenKeys(t *testing.T) {
	e := newEnv(t, time.Hour)
	e.checkRequests(1, "first")
	base := e.key
	for i, change := range []func(*client.TokenKey){
		func(k *client.TokenKey) { k.Role = "edit" },
		func(k *client.TokenKey) { k.Session = "deploy" },
		func(k *client.TokenKey) { k.Login = "alice@b.example" },
		func(k *client.TokenKey) { k.Namespaces = []string{"shop"} },
		func(k *client.TokenKey) { k.Namespaces = []string{"sh", "op"} },
		func(k *client.TokenKey) { k.ClusterKey = "ed25519:x" },
		func(k *client.TokenKey) { k.CASHA256 = "00" },
		func(k *client.TokenKey) { k.Cluster = "d" },
		func(k *client.TokenKey) { k.Server = "https://tka2" },
		func(k *client.TokenKey) { k.Node = "nBob" },
	} {
		e.key = base
		change(&e.key)
		e.checkRequests(i+2, fmt.Sprintf("%+v is another key", e.key))
		e.checkRequests(i+2, "and kept from now on")
	}
}

// SGN-20: a process that requests a token twice was refused with the first one.
func TestTokenSameProcessAgain(t *testing.T) {
	e := newEnv(t, time.Hour)
	e.checkRequests(1, "first", "a")
	e.checkRequests(1, "another process", "b")
	e.checkRequests(2, "the first again: it was refused", "a")
	e.checkRequests(2, "b has the old one, and gets the new one without a request", "b")
	e.checkRequests(3, "and is refused with that, too", "b")
	e.checkRequests(3, "somebody else", "c")
}

// SGN-20, CL-06: fifty concurrent requests cause one fetch, and fifty concurrent refusals cause one more.
func TestTokenFiftyAtOnce(t *testing.T) {
	e := newEnv(t, time.Hour)
	for round := 1; round <= 3; round++ {
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				c, err := e.cache.Get(t.Context(), e.key, fmt.Sprint(i), e.fetch)
				if want := fmt.Sprintf("%s-%d", tokenText, round); err != nil || c.Token.Reveal() != want {
					t.Errorf("round %d, %d: %s, %v", round, i, c.Token.Reveal(), err)
				}
			})
		}
		wg.Wait()
		if n := e.requests.Load(); int(n) != round {
			t.Fatalf("round %d: %d requests", round, n)
		}
	}
}

// SGN-20, CL-06: a damaged, foreign or unwritable cache counts as no cache and is no error.
func TestTokenFileDamaged(t *testing.T) {
	damage := map[string]func(t *testing.T, e *env){
		"empty":     func(t *testing.T, e *env) { overwriteFile(t, e, ".json", "") },
		"cut":       func(t *testing.T, e *env) { overwriteFile(t, e, ".json", `{"key":"`) },
		"null":      func(t *testing.T, e *env) { overwriteFile(t, e, ".json", "null") },
		"list":      func(t *testing.T, e *env) { overwriteFile(t, e, ".json", "[]") },
		"huge":      func(t *testing.T, e *env) { overwriteFile(t, e, ".json", strings.Repeat(" ", 9<<20)) },
		"bad token": func(t *testing.T, e *env) { editFile(t, e, tokenText, `a\r\nHost: evil`) },
		"no token":  func(t *testing.T, e *env) { editFile(t, e, tokenText+"-1", "") },
		"another's key": func(t *testing.T, e *env) {
			editFile(t, e, `"key":"`, `"key":"0`)
		},
		"symbolic link": func(t *testing.T, e *env) {
			f := findFile(t, e, ".json")
			if err := errors.Join(os.Rename(f, f+".moved"), os.Symlink(f+".moved", f)); err != nil {
				t.Fatal(err)
			}
		},
		"a folder in its place": func(t *testing.T, e *env) {
			f := findFile(t, e, ".json")
			if err := errors.Join(os.Remove(f), os.MkdirAll(filepath.Join(f, "x"), 0o700)); err != nil {
				t.Fatal(err)
			}
		},
		"marks cannot be read": func(t *testing.T, e *env) {
			f := findFile(t, e, ".askers")
			if err := errors.Join(os.Remove(f), os.MkdirAll(filepath.Join(f, "x"), 0o700)); err != nil {
				t.Fatal(err)
			}
		},
		"no folder can be made": func(t *testing.T, e *env) {
			dir := e.cache.Dirs[0]
			if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
				t.Fatal(err)
			}
		},
		"the folder is a link": func(t *testing.T, e *env) {
			dir := e.cache.Dirs[0]
			if err := errors.Join(os.Rename(dir, dir+"2"), os.Symlink(dir+"2", dir)); err != nil {
				t.Fatal(err)
			}
		},
		"another user's": func(t *testing.T, e *env) {
			if err := os.Chown(findFile(t, e, ".json"), 65534, 65534); err != nil {
				t.Skipf("SKIP another user's file: %v", err)
			}
		},
	}
	for name, f := range damage {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, time.Hour)
			e.checkRequests(1, "first")
			f(t, e)
			e.checkRequests(2, name)
		})
	}
}

// The cache removes other users' access to its directories before it stores a token.
func TestTokenDirsArePrivate(t *testing.T) {
	e := newEnv(t, time.Hour)
	for _, dir := range []string{e.cache.Dirs[0], filepath.Join(e.cache.Dirs[0], "tokens")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	e.checkRequests(1, "first")
	if len(e.files()) == 0 { // checks the modes
		t.Error("the cache is empty")
	}
	e.cache.Dirs = []string{"relative", e.cache.Dirs[0]}
	e.checkRequests(1, "a relative folder is passed over")
}

// After a refusal by the server, nothing is stored, and the stored token is removed.
func TestTokenFetchFails(t *testing.T) {
	e := newEnv(t, time.Hour)
	e.checkRequests(1, "first", "a")
	e.fails = errors.New("not signed in")
	if _, err := e.cache.Get(t.Context(), e.key, "a", e.fetch); !errors.Is(err, e.fails) {
		t.Errorf("got %v", err)
	}
	if _, err := e.cache.Get(t.Context(), e.key, "b", e.fetch); !errors.Is(err, e.fails) {
		t.Errorf("the cache returned the token after the server's refusal: %v", err)
	}
}

func TestTokenDelete(t *testing.T) {
	e := newEnv(t, time.Hour)
	e.checkRequests(1, "first")
	if err := e.cache.Delete("https://tka", "other", ""); err != nil {
		t.Error(err)
	}
	if err := e.cache.Delete("https://tka", "c", "deploy"); err != nil {
		t.Error(err)
	}
	e.checkRequests(1, "the token of another cluster or session was dropped")
	if err := e.cache.Delete("https://tka", "c", ""); err != nil {
		t.Error(err)
	}
	for _, f := range e.files() {
		if text, err := os.ReadFile(f); err != nil || strings.Contains(string(text), tokenText) {
			t.Errorf("%s: %v, %s", f, err, text)
		}
	}
	e.checkRequests(2, "dropped")
}

// A process that waits too long for another's request sends its own. A process that is interrupted while it waits ends.
func TestTokenWaiting(t *testing.T) { synctest.Test(t, testTokenWaiting) }

func testTokenWaiting(t *testing.T) {
	e := newEnv(t, time.Hour)
	inside, let := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		_, err := e.cache.Get(t.Context(), e.key, "slow", func(ctx context.Context) (client.CachedToken, error) {
			close(inside)
			<-let
			return e.fetch(ctx)
		})
		done <- err
	}()
	<-inside
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.cache.Get(ctx, e.key, "b", e.fetch); !errors.Is(err, context.Canceled) || e.requests.Load() != 0 {
		t.Errorf("interrupted: %v, %d requests", err, e.requests.Load())
	}
	began := time.Now()
	if _, err := e.cache.Get(t.Context(), e.key, "c", e.fetch); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took < 9*time.Second || e.requests.Load() != 1 {
		t.Errorf("waited %v, %d requests", took, e.requests.Load())
	}
	close(let)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// The number of stored marks is limited.
func TestTokenManyRequesters(t *testing.T) {
	e := newEnv(t, time.Hour)
	for range 5000 {
		e.get()
	}
	if n := e.requests.Load(); n != 1 {
		t.Errorf("%d requests", n)
	}
	for _, f := range e.files() {
		if st, err := os.Stat(f); err != nil || st.Size() > 70<<10 {
			t.Errorf("%s: %v, %v", f, st.Size(), err)
		}
	}
}

func findFile(t *testing.T, e *env, ending string) string {
	t.Helper()
	for _, f := range e.files() {
		if strings.HasSuffix(f, ending) {
			return f
		}
	}
	t.Fatalf("no file %s", ending)
	return ""
}

func overwriteFile(t *testing.T, e *env, ending, text string) {
	t.Helper()
	if err := os.WriteFile(findFile(t, e, ending), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func editFile(t *testing.T, e *env, old, text string) {
	t.Helper()
	have, err := os.ReadFile(findFile(t, e, ".json"))
	if err != nil || !strings.Contains(string(have), old) {
		t.Fatalf("%v: %s", err, have)
	}
	overwriteFile(t, e, ".json", strings.Replace(string(have), old, text, 1))
}
