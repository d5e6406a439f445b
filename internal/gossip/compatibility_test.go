package gossip

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/audit"
)

// A partnerProcess is a member in one process; its only peer is in another process. They communicate through a pipe, in JSON frames.
type partnerProcess struct {
	node *Node

	mu      sync.Mutex
	enc     *json.Encoder
	pending map[int]chan frame
	asked   int
}

// A frame is a gossip message, the response to one, or a request for the members that the other side sees.
type frame struct {
	ID   int
	Kind string // "ask", "answer", "list"
	Body []byte
	Err  string
}

// newPartner returns member 0 or 1 of a simulation of two, on the real clock.
func newPartner(t testing.TB, index int, w io.Writer) *partnerProcess {
	s := newSim(t, 900, 2, Settings{})
	n := s.nodes[index]
	n.facts.Audit = []audit.SignedHead{states(line("A", 500, 0))}
	p := &partnerProcess{enc: json.NewEncoder(w), pending: map[int]chan frame{}}
	var err error
	p.node, err = New(Config{ID: n.facts.Node, Key: n.facts.Key, Sign: n.sign, Facts: func() (Facts, bool) { return n.facts, true },
		Netmap:   func() *Netmap { return s.netmap },
		Exchange: func(ctx context.Context, _ Peer, body []byte) ([]byte, error) { return p.call(ctx, "ask", body) },
		Load:     func(context.Context) (Memory, error) { return Memory{}, nil },
		Save:     func(context.Context, Memory) error { return nil },
		Report:   func(Event) {}, Log: slog.New(slog.DiscardHandler), Now: time.Now, Rand: rand.NewPCG(1, uint64(index))})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *partnerProcess) send(f frame) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.enc.Encode(f)
}

func (p *partnerProcess) call(ctx context.Context, kind string, body []byte) ([]byte, error) {
	answer := make(chan frame, 1)
	p.mu.Lock()
	p.asked++
	id := p.asked
	p.pending[id] = answer
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.pending, id)
		p.mu.Unlock()
	}()
	if err := p.send(frame{ID: id, Kind: kind, Body: body}); err != nil {
		return nil, err
	}
	select {
	case f := <-answer:
		if f.Err != "" {
			return nil, errors.New(f.Err)
		}
		return f.Body, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// serve responds to requests from the node with that id until the pipe ends.
func (p *partnerProcess) serve(r io.Reader, from string) error {
	d := json.NewDecoder(r)
	for {
		var f frame
		if err := d.Decode(&f); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		answer := frame{ID: f.ID, Kind: "answer"}
		var err error
		switch f.Kind {
		case "answer":
			p.mu.Lock()
			waits := p.pending[f.ID]
			p.mu.Unlock()
			if waits != nil {
				waits <- f
			}
			continue
		case "ask":
			answer.Body, err = p.node.Handle(from, f.Body)
		case "list":
			list, _ := p.node.Members().Clusters(true)
			answer.Body, err = json.Marshal(list)
		}
		if err != nil {
			answer.Err = err.Error()
		}
		if err := p.send(answer); err != nil {
			return err
		}
	}
}

// partnerEnv makes the test binary run as the other member.
const partnerEnv = "TAILPLANE_TEST_GOSSIP_PARTNER"

// previousEnv names the test binary of this package in the previous release: go test -c -o FILE ./internal/gossip.
const previousEnv = "TAILPLANE_TEST_GOSSIP_PREVIOUS"

// TestPartner is the other member of TestTwoBuilds. It does nothing on its own.
func TestPartner(t *testing.T) {
	if os.Getenv(partnerEnv) == "" {
		t.Skip("SKIP the other member: TestTwoBuilds starts it")
	}
	p := newPartner(t, 1, os.Stdout)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { p.node.Run(ctx) })
	err := p.serve(os.Stdin, newSim(t, 900, 2, Settings{}).nodes[0].facts.Node)
	cancel()
	wg.Wait()
	if err != nil {
		t.Fatal(err)
	}
	os.Exit(0) // the output of package testing is no frame
}

// TestTwoBuilds: a member of this build and a member of another build exchange in both directions, and each verifies the other's record
// (DSC-12, GO-05). The other build has no optimisation and another tag, is stripped, and uses cgo if this one does not. In TKA half of such
// pairs could not communicate.
func TestTwoBuilds(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIP two builds: one has to be compiled, and -short is given")
	}
	for name, cgo := range map[string]string{"without cgo": "0", "with cgo": "1"} {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath("gcc"); err != nil && cgo == "1" {
				t.Skip("SKIP a build with cgo: no C compiler")
			}
			other := filepath.Join(t.TempDir(), "other.test")
			build := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", other, "-gcflags=-N -l", "-tags=tailplane_other", "-ldflags=-s -w", "-trimpath=false", ".")
			build.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GOFLAGS=") }), "GOFLAGS=-buildvcs=false", "CGO_ENABLED="+cgo)
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			runTwoBuilds(t, other)
		})
	}
	t.Run("previous release", func(t *testing.T) {
		other := os.Getenv(previousEnv)
		if other == "" {
			t.Skipf("SKIP a build of the previous release: %s does not name the test binary of its package", previousEnv)
		}
		runTwoBuilds(t, other)
	})
}

func runTwoBuilds(t *testing.T, program string) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-test.run", "^TestPartner$")
	cmd.Env = append(os.Environ(), partnerEnv+"=1")
	cmd.Stderr = t.Output()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := newPartner(t, 0, in)
	s := newSim(t, 900, 2, Settings{})
	var wg sync.WaitGroup
	running, stop := context.WithCancel(ctx)
	var served error
	wg.Go(func() { served = p.serve(out, s.nodes[1].facts.Node) })
	wg.Go(func() { p.node.Run(running) })
	met := func(list []Cluster) bool {
		n := 0
		for _, c := range list {
			if c.State == Alive && c.Verified && !c.Conflict {
				n++
			}
		}
		return n == 2
	}
	var here, there []Cluster
	for !met(here) || !met(there) {
		time.Sleep(50 * time.Millisecond) // between two checks of another process
		if ctx.Err() != nil {
			break
		}
		here, _ = p.node.Members().Clusters(true)
		if body, err := p.call(ctx, "list", nil); err == nil {
			there = nil
			if err := json.Unmarshal(body, &there); err != nil {
				t.Error(err)
			}
		}
	}
	if !met(here) || !met(there) {
		t.Errorf("this build (%s) sees %+v, the other one %+v", runtime.Version(), here, there)
	}
	for _, why := range Reasons() {
		if n := p.node.Stats().Rejected[why]; n > 0 {
			t.Errorf("%d parts of messages did not count: %s", n, why)
		}
	}
	stop()
	in.Close()
	wg.Wait()
	if err := errors.Join(served, cmd.Wait()); err != nil {
		t.Error(err)
	}
}
