package gossip

import (
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/testkit/gossiptest"
)

// `make sim` names a scenario and takes the figures from a file.
var (
	simArgs = flag.String("sim", "N=10 LOSS=0.5 SECONDS=5", "the scenario of TestSim")
	simFile = flag.String("sim.file", "", "where TestSim writes its result, as JSON")
)

// TestSim runs one scenario from end to end. It measures, and asserts only the laws of every simulation and that everything ends: in some
// scenarios no node can stay alive.
func TestSim(t *testing.T) {
	sc, err := gossiptest.Parse(strings.Fields(*simArgs))
	if err != nil {
		t.Fatal(err)
	}
	r := runScenario(t, sc)
	if *simFile == "" {
		switch {
		case r.Join == 0:
			t.Errorf("a mild scenario ends: r.Join = %v", r.Join)
		case r.Death == 0:
			t.Errorf("a mild scenario ends: r.Death = %v", r.Death)
		case r.Messages == 0:
			t.Errorf("a mild scenario ends: r.Messages = %v", r.Messages)
		case r.Bytes == 0:
			t.Errorf("a mild scenario ends: r.Bytes = %v", r.Bytes)
		}
		if err := gossiptest.Print(t.Output(), sc, []gossiptest.Result{r}); err != nil {
			t.Error(err)
		}
		return
	}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(*simFile, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func runScenario(t testing.TB, sc gossiptest.Scenario) gossiptest.Result {
	t.Helper()
	began := time.Now()
	r := gossiptest.Result{Protocol: "tailplane"}
	s := newSim(t, sc.Seed, sc.N, Settings{})
	s.loss, s.jitter, s.delay = sc.Loss, sc.Jitter, [2]time.Duration{gossiptest.MinDelay, gossiptest.MaxDelay}
	s.startAll()
	if d, ok := s.until(gossiptest.Limit, func() bool { return s.allKnowAll() && s.allThere() }); ok {
		r.Join = d
	}
	bytes, sent := s.sent()
	s.run(sc.Watch)
	bytesThen, sentThen := s.sent()
	per := sc.Watch.Seconds() * float64(sc.N)
	r.Bytes, r.Messages = float64(bytesThen-bytes)/per, float64(sentThen-sent)/per

	x := s.nodes[sc.N/2]
	wasFalse := s.deathsOf(x)
	if d, ok := s.deathWithin(x, gossiptest.Limit); ok {
		r.Death = d
	}
	r.False = s.deathsSeen() - s.deathsOf(x) + wasFalse
	r.Took = time.Since(began)
	return r
}

// allThere reports whether every node sees every other node as alive or suspect.
func (s *sim) allThere() bool {
	return !slices.ContainsFunc(s.living(), func(o *simNode) bool { return !s.everywhere(o, Alive, Suspect) })
}

// sent returns what all nodes have sent so far.
func (s *sim) sent() (bytes, messages uint64) {
	for _, n := range s.nodes {
		bytes, messages = bytes+n.bytes, messages+n.sent
	}
	return bytes, messages
}

// deathsOf counts how often any node saw x die.
func (s *sim) deathsOf(x *simNode) (n int) {
	for _, node := range s.nodes {
		n += node.deaths[x.facts.Node]
	}
	return n
}
