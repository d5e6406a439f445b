package tokencache_test

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

	"github.com/tailplane/tailplane/internal/cli/tokencache"
	"github.com/tailplane/tailplane/internal/signin"
)

const secret = "eyJSECRET"

// A server issues tokens and counts them.
type server struct {
	life  time.Duration
	now   func() time.Time
	asked atomic.Int32
	fails error
}

func (s *server) fetch(context.Context) (tokencache.Credential, error) {
	n := s.asked.Add(1)
	if s.fails != nil {
		return tokencache.Credential{}, s.fails
	}
	c := tokencache.Credential{Token: signin.NewToken(fmt.Sprintf("%s-%d", secret, n))}
	if s.life != 0 {
		c.Expires = s.now().Add(s.life)
	}
	return c, nil
}

type bench struct {
	*server
	t     *testing.T
	cache tokencache.Cache
	clock time.Time
	key   tokencache.Key
	n     int
}

func newBench(t *testing.T, life time.Duration) *bench {
	b := &bench{t: t, clock: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC), key: tokencache.Key{Server: "https://tka", Cluster: "c", Login: "alice@example.com", Role: "view"}}
	now := func() time.Time { return b.clock }
	b.server = &server{life: life, now: now}
	b.cache = tokencache.Cache{Folders: []string{filepath.Join(t.TempDir(), "tka")}, Now: now}
	return b
}

// get requests a token as a new process, or as the named one.
func (b *bench) get(asker ...string) string {
	b.t.Helper()
	if len(asker) == 0 {
		b.n++
		asker = []string{fmt.Sprint("another ", b.n)}
	}
	c, err := b.cache.Get(b.t.Context(), b.key, asker[0], b.fetch)
	if err != nil {
		b.t.Fatal(err)
	}
	return c.Token.Reveal()
}

// wants checks which request the next token comes from.
func (b *bench) wants(n int, why string, asker ...string) {
	b.t.Helper()
	if got, want := b.get(asker...), fmt.Sprintf("%s-%d", secret, n); got != want {
		b.t.Errorf("token %s, want %s: %s", got, want, why)
	}
}

func (b *bench) files() (files []string) {
	b.t.Helper()
	err := filepath.WalkDir(b.cache.Folders[0], func(path string, d fs.DirEntry, err error) error {
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
			b.t.Errorf("%s has mode %v", path, st.Mode())
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		b.t.Fatal(err)
	}
	return files
}

// conventions 2: a token is replaced 60 s before its end or in the last quarter of its life, whichever is shorter.
func TestRenewalMargin(t *testing.T) {
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
		b := newBench(t, tt.life)
		b.wants(1, "first")
		b.clock = b.clock.Add(tt.at)
		b.wants(tt.request, fmt.Sprintf("life %v, after %v: %s", tt.life, tt.at, tt.why))
	}
}

// The cache does not return a token for another key.
func TestKeys(t *testing.T) {
	b := newBench(t, time.Hour)
	b.wants(1, "first")
	base := b.key
	for i, change := range []func(*tokencache.Key){
		func(k *tokencache.Key) { k.Role = "edit" },
		func(k *tokencache.Key) { k.Login = "alice@b.example" },
		func(k *tokencache.Key) { k.Namespaces = []string{"shop"} },
		func(k *tokencache.Key) { k.Namespaces = []string{"sh", "op"} },
		func(k *tokencache.Key) { k.ClusterKey = "ed25519:x" },
		func(k *tokencache.Key) { k.CASHA256 = "00" },
		func(k *tokencache.Key) { k.Cluster = "d" },
		func(k *tokencache.Key) { k.Server = "https://tka2" },
	} {
		b.key = base
		change(&b.key)
		b.wants(i+2, fmt.Sprintf("%+v is another key", b.key))
		b.wants(i+2, "and kept from now on")
	}
}

// SGN-20: a process that requests a token twice was refused with the first one.
func TestTheSameProcessAgain(t *testing.T) {
	b := newBench(t, time.Hour)
	b.wants(1, "first", "a")
	b.wants(1, "another process", "b")
	b.wants(2, "the first again: it was refused", "a")
	b.wants(2, "b has the old one, and gets the new one without a request", "b")
	b.wants(3, "and is refused with that, too", "b")
	b.wants(3, "somebody else", "c")
}

// SGN-20, CL-06: fifty concurrent requests cause one fetch, and fifty concurrent refusals cause one more.
func TestFiftyAtOnce(t *testing.T) {
	b := newBench(t, time.Hour)
	for round := 1; round <= 3; round++ {
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				c, err := b.cache.Get(t.Context(), b.key, fmt.Sprint(i), b.fetch)
				if want := fmt.Sprintf("%s-%d", secret, round); err != nil || c.Token.Reveal() != want {
					t.Errorf("round %d, %d: %s, %v", round, i, c.Token.Reveal(), err)
				}
			})
		}
		wg.Wait()
		if n := b.asked.Load(); int(n) != round {
			t.Fatalf("round %d: %d requests", round, n)
		}
	}
}

// SGN-20, CL-06: a damaged, foreign or unwritable cache counts as no cache and is no error.
func TestDamage(t *testing.T) {
	damage := map[string]func(t *testing.T, b *bench){
		"empty":     func(t *testing.T, b *bench) { overwrite(t, b, ".json", "") },
		"cut":       func(t *testing.T, b *bench) { overwrite(t, b, ".json", `{"key":"`) },
		"null":      func(t *testing.T, b *bench) { overwrite(t, b, ".json", "null") },
		"list":      func(t *testing.T, b *bench) { overwrite(t, b, ".json", "[]") },
		"huge":      func(t *testing.T, b *bench) { overwrite(t, b, ".json", strings.Repeat(" ", 9<<20)) },
		"bad token": func(t *testing.T, b *bench) { edit(t, b, secret, `a\r\nHost: evil`) },
		"no token":  func(t *testing.T, b *bench) { edit(t, b, secret+"-1", "") },
		"another's key": func(t *testing.T, b *bench) {
			edit(t, b, `"key":"`, `"key":"0`)
		},
		"symbolic link": func(t *testing.T, b *bench) {
			f := find(t, b, ".json")
			if err := errors.Join(os.Rename(f, f+".moved"), os.Symlink(f+".moved", f)); err != nil {
				t.Fatal(err)
			}
		},
		"a folder in its place": func(t *testing.T, b *bench) {
			f := find(t, b, ".json")
			if err := errors.Join(os.Remove(f), os.MkdirAll(filepath.Join(f, "x"), 0o700)); err != nil {
				t.Fatal(err)
			}
		},
		"marks cannot be read": func(t *testing.T, b *bench) {
			f := find(t, b, ".askers")
			if err := errors.Join(os.Remove(f), os.MkdirAll(filepath.Join(f, "x"), 0o700)); err != nil {
				t.Fatal(err)
			}
		},
		"no folder can be made": func(t *testing.T, b *bench) {
			dir := b.cache.Folders[0]
			if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
				t.Fatal(err)
			}
		},
		"the folder is a link": func(t *testing.T, b *bench) {
			dir := b.cache.Folders[0]
			if err := errors.Join(os.Rename(dir, dir+"2"), os.Symlink(dir+"2", dir)); err != nil {
				t.Fatal(err)
			}
		},
		"another user's": func(t *testing.T, b *bench) {
			if err := os.Chown(find(t, b, ".json"), 65534, 65534); err != nil {
				t.Skipf("SKIP another user's file: %v", err)
			}
		},
	}
	for name, f := range damage {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, time.Hour)
			b.wants(1, "first")
			f(t, b)
			b.wants(2, name)
		})
	}
}

// The cache removes other users' access to its folders before it stores a token.
func TestFoldersAreClosed(t *testing.T) {
	b := newBench(t, time.Hour)
	for _, dir := range []string{b.cache.Folders[0], filepath.Join(b.cache.Folders[0], "tokens")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b.wants(1, "first")
	if len(b.files()) == 0 { // checks the modes
		t.Error("nothing is kept")
	}
	b.cache.Folders = []string{"relative", b.cache.Folders[0]}
	b.wants(1, "a relative folder is passed over")
}

// After a refusal by the server, nothing is stored, and the stored token is removed.
func TestRefusal(t *testing.T) {
	b := newBench(t, time.Hour)
	b.wants(1, "first", "a")
	b.fails = errors.New("not signed in")
	if _, err := b.cache.Get(t.Context(), b.key, "a", b.fetch); !errors.Is(err, b.fails) {
		t.Errorf("got %v", err)
	}
	if _, err := b.cache.Get(t.Context(), b.key, "b", b.fetch); !errors.Is(err, b.fails) {
		t.Errorf("the token was given out after the server refused: %v", err)
	}
}

func TestDrop(t *testing.T) {
	b := newBench(t, time.Hour)
	b.wants(1, "first")
	if err := b.cache.Drop("https://tka", "other"); err != nil {
		t.Error(err)
	}
	b.wants(1, "another cluster's token was dropped")
	if err := b.cache.Drop("https://tka", "c"); err != nil {
		t.Error(err)
	}
	for _, f := range b.files() {
		if text, err := os.ReadFile(f); err != nil || strings.Contains(string(text), secret) {
			t.Errorf("%s: %v, %s", f, err, text)
		}
	}
	b.wants(2, "dropped")
}

// A process that waits too long for another's request sends its own. A process that is interrupted while it waits ends.
func TestWaiting(t *testing.T) { synctest.Test(t, testWaiting) }

func testWaiting(t *testing.T) {
	b := newBench(t, time.Hour)
	inside, let := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		_, err := b.cache.Get(t.Context(), b.key, "slow", func(ctx context.Context) (tokencache.Credential, error) {
			close(inside)
			<-let
			return b.fetch(ctx)
		})
		done <- err
	}()
	<-inside
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.cache.Get(ctx, b.key, "b", b.fetch); !errors.Is(err, context.Canceled) || b.asked.Load() != 0 {
		t.Errorf("interrupted: %v, %d requests", err, b.asked.Load())
	}
	began := time.Now()
	if _, err := b.cache.Get(t.Context(), b.key, "c", b.fetch); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took < 9*time.Second || b.asked.Load() != 1 {
		t.Errorf("waited %v, %d requests", took, b.asked.Load())
	}
	close(let)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// The number of stored marks is limited.
func TestManyAskers(t *testing.T) {
	b := newBench(t, time.Hour)
	for range 5000 {
		b.get()
	}
	if n := b.asked.Load(); n != 1 {
		t.Errorf("%d requests", n)
	}
	for _, f := range b.files() {
		if st, err := os.Stat(f); err != nil || st.Size() > 70<<10 {
			t.Errorf("%s: %v, %v", f, st.Size(), err)
		}
	}
}

func find(t *testing.T, b *bench, ending string) string {
	t.Helper()
	for _, f := range b.files() {
		if strings.HasSuffix(f, ending) {
			return f
		}
	}
	t.Fatalf("no file %s", ending)
	return ""
}

func overwrite(t *testing.T, b *bench, ending, text string) {
	t.Helper()
	if err := os.WriteFile(find(t, b, ending), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func edit(t *testing.T, b *bench, old, text string) {
	t.Helper()
	have, err := os.ReadFile(find(t, b, ".json"))
	if err != nil || !strings.Contains(string(have), old) {
		t.Fatalf("%v: %s", err, have)
	}
	overwrite(t, b, ".json", strings.Replace(string(have), old, text, 1))
}
