package days

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/tailplane/tailplane/testkit/testenv"
)

// One of two access servers of east is killed while people work: sign-ins, open terminals and discovery continue through the other one,
// in both directions. West and its people notice nothing.
func TestDay_OneOfTwoReplicasDies(t *testing.T) { inEachWorld(t, oneOfTwoReplicasDies) }

func oneOfTwoReplicasDies(t *testing.T, w *world) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	second, err := w.east.Replica(ctx, "tka-east-1", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := second.Stop(patience); err != nil {
			t.Error(err)
		}
		w.restart(t)
	})
	laptop, tablet, bob := w.device(t, "laptop", alice), w.device(t, "tablet", alice), w.deviceOf(t, w.west, "bob-laptop", w.bob)
	stranger, err := tablet.User("stranger") // has never met a server
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []*testenv.Person{laptop, tablet, bob} {
		if err := w.east.Net.WaitPeer(ctx, p.Node, "tka-east-1"); err != nil {
			t.Fatal(err)
		}
	}
	onLaptop, onTablet, bobs := row(alice, "laptop", "-", "view"), row(alice, "tablet", "-", "view"), row(w.bob, "bob-laptop", "-", "view")
	edits := row(alice, "laptop", "shell", "edit")
	first := strings.TrimPrefix(w.east.Server(), "https://") // on Headscale a URL that the machines know

	// Both servers serve one cluster: what begins at one is seen at the other, and west knows both.
	run(t, laptop, 0, "tka login --use")
	run(t, tablet, 0, "tka login --use")
	w.learn(t, laptop, "tka-east-1")
	w.learn(t, tablet, "tka-east-1")
	shows(t, tablet, "tka status --server tka-east-1", `^east +alice@example.com +view`)
	elevated := open(t, laptop, "tka", "shell", "--role", "edit", "--", "sh")
	elevated.do(0, "kubectl create configmap before -n shop")
	eventually(t, "west lists both servers of east", func() bool {
		return strings.Contains(run(t, bob, 0, "tka clusters -o json"), "tka-east-1."+w.east.Net.Suffix())
	})
	w.sees(t, "with two servers", []string{onLaptop, edits, onTablet}, nil)

	// The first one dies. All act at the same time, because each waits for a server that does not answer.
	w.east.Access.Kill()
	atOnce(t,
		func() { run(t, laptop, 0, "tka login") },
		func() {
			matches(t, "refresh in the elevated terminal", elevated.do(0, "tka refresh --for 20m"), "with the role edit")
		},
		func() { shows(t, tablet, "tka status", `^east +alice@example.com +view .*ready`) },
		func() { shows(t, tablet, "tka clusters", `^east +alive .*this one`, `^west +alive`) },
		func() { run(t, tablet, 0, "tka login --cluster west") },
		func() { run(t, bob, 0, "tka login --cluster east --use") }, // found through west
		func() { run(t, stranger, 5, "tka login --timeout 8s") },
	)
	w.sees(t, "with one server", []string{onLaptop, edits, onTablet, bobs}, []string{onTablet})

	// A login moved the machines to the server that answers.
	elevated.do(0, "kubectl create configmap after -n shop")
	elevated.exit()
	run(t, bob, 0, "kubectl get pods -n shop")
	shows(t, bob, "tka clusters", `^east +(alive|suspect) .*ready +view`, `^west +alive .*this one`)
	w.sees(t, "after the elevated terminal", []string{onLaptop, onTablet, bobs}, []string{onTablet})
	run(t, laptop, 0, "tka logout")
	w.sees(t, "after logout", []string{onTablet, bobs}, []string{onTablet})
	refused(t, laptop, "kubectl --context tka-east get pods -n shop")

	// The first one is back and knows all that happened. Then the second one dies.
	w.restart(t)
	run(t, laptop, 3, "tka status --server "+first)
	w.learn(t, bob, "tka-east")
	shows(t, tablet, "tka status --server "+first, `^east +alice@example.com +view`)
	second.Kill()
	atOnce(t,
		func() { run(t, laptop, 0, "tka login --use") },
		func() { run(t, tablet, 0, "tka refresh --cluster east") },
		func() { run(t, bob, 0, "tka refresh --cluster east") },
	)
	w.sees(t, "with the other server", []string{onLaptop, onTablet, bobs}, []string{onTablet})
	for _, p := range []*testenv.Person{laptop, tablet, bob} {
		run(t, p, 0, "kubectl --context tka-east get pods -n shop")
		run(t, p, 0, "tka logout --all")
	}
	w.sees(t, "at night", nil, nil)
}

// learn lets the machine of p meet a server of east once.
func (w *world) learn(t *testing.T, p *testenv.Person, server string) {
	t.Helper()
	run(t, p, 0, "tka config servers."+server+".url "+w.east.ServerAt(server))
	if w.tailnet.Headscale {
		run(t, p, 0, "tka config servers."+server+".insecureHTTP true")
	}
	run(t, p, 0, "tka status --server "+server)
}

// restart starts the first server of east if it was killed.
func (w *world) restart(t *testing.T) {
	t.Helper()
	select {
	case <-w.east.Access.Done():
	default:
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	if err := w.east.StartAccess(ctx); err != nil {
		t.Fatal(err)
	}
}

// atOnce calls functions at the same time. It ends the test if one of them failed.
func atOnce(t *testing.T, all ...func()) {
	t.Helper()
	var wg sync.WaitGroup
	for _, f := range all {
		wg.Go(f)
	}
	if wg.Wait(); t.Failed() {
		t.FailNow()
	}
}
