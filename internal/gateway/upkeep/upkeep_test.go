package upkeep

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"
)

var now = time.Date(2026, 11, 22, 5, 0, 0, 0, time.UTC)

// in returns a replica whose device has joined and whose key was removed.
func in(node string) Replica {
	return Replica{Pod: "p", Ready: true, RanIn: "p", State: true, Config: true, Node: node, Joined: true, Key: Key{ID: "k", Until: now.Add(-time.Hour)}}
}

func TestNext(t *testing.T) {
	fresh := Replica{State: true, Config: true}
	key := func(since time.Duration) Key { return Key{ID: "k1", AtHand: true, Until: now.Add(KeyLife - since)} }
	with := func(r Replica, change func(*Replica)) Replica { change(&r); return r }
	for _, x := range []struct {
		why  string
		f    Facts
		want Step
	}{
		{"nothing is made before it is held",
			Facts{Accepted: true, Replicas: 2, API: true, Ordinals: map[int]Replica{0: fresh}},
			Step{Deed: Hold}},
		{"what is deleted is never held",
			Facts{Deleting: true, Accepted: true, Replicas: 2, API: true, Ordinals: map[int]Replica{0: fresh}},
			Step{Deed: Rest}},
		{"what is not accepted gets nothing, and loses nothing",
			Facts{Held: true, Replicas: 1, API: true, Ordinals: map[int]Replica{0: fresh, 1: in("n1")}},
			Step{Deed: Rest}},
		{"missing keys are made together",
			Facts{Accepted: true, Held: true, Replicas: 3, API: true, Ordinals: map[int]Replica{0: fresh, 1: in("n1"), 2: fresh}},
			Step{Deed: Mint, Ordinals: []int{0, 2}}},
		{"without the API nothing is made, and whoever brings it wakes us",
			Facts{Accepted: true, Held: true, Replicas: 1, Ordinals: map[int]Replica{0: fresh}},
			Step{Deed: Rest}},
		{"after a failure it waits",
			Facts{Accepted: true, Held: true, Replicas: 1, API: true, After: now.Add(time.Second), Ordinals: map[int]Replica{0: fresh}},
			Step{Deed: Rest, Wake: now.Add(time.Second)}},
		{"a key at hand is enough, and the end of its life is looked at",
			Facts{Accepted: true, Held: true, Replicas: 1, API: true, Ordinals: map[int]Replica{0: with(fresh, func(r *Replica) { r.Pod, r.Key = "p", key(time.Minute) })}},
			Step{Deed: Rest, Wake: now.Add(59 * time.Minute)}},
		{"a key that ended unused is replaced if somebody is there to use it",
			Facts{Accepted: true, Held: true, Replicas: 1, API: true, Ordinals: map[int]Replica{0: with(fresh, func(r *Replica) { r.Pod, r.Key = "p", key(KeyLife) })}},
			Step{Deed: Mint, Ordinals: []int{0}}},
		{"and not each hour for a pod that nobody starts",
			Facts{Accepted: true, Held: true, Replicas: 1, API: true, Ordinals: map[int]Replica{0: with(fresh, func(r *Replica) { r.Key = key(KeyLife) })}},
			Step{Deed: Rest}},
		{"a key that was used is taken away",
			Facts{Accepted: true, Held: true, Replicas: 1, API: true, Ordinals: map[int]Replica{0: with(in("n0"), func(r *Replica) { r.Key = key(0) })}},
			Step{Deed: Clean, Ordinals: []int{0}}},
		{"but not before the device's keys are stored",
			Facts{Accepted: true, Held: true, Replicas: 1, API: true, Ordinals: map[int]Replica{0: with(in("n0"), func(r *Replica) { r.Key, r.Joined = key(0), false })}},
			Step{Deed: Rest, Wake: now.Add(KeyLife)}},
		{"what was begun is looked for before the next",
			Facts{Accepted: true, Held: true, Replicas: 1, API: true, Ordinals: map[int]Replica{0: with(fresh, func(r *Replica) { r.Key = Key{Begun: true, Until: now.Add(time.Minute)} })}},
			Step{Deed: Tidy, Ordinals: []int{0}}},
		{"unless it is dead anyway",
			Facts{Accepted: true, Held: true, Replicas: 1, API: true, Ordinals: map[int]Replica{0: with(fresh, func(r *Replica) { r.Pod, r.Key = "p", Key{Begun: true, Until: now} })}},
			Step{Deed: Mint, Ordinals: []int{0}}},
		{"GTW-17: a relay has lost its device: is it gone?",
			Facts{Accepted: true, Held: true, Replicas: 1, API: true, Ordinals: map[int]Replica{0: with(in("n0"), func(r *Replica) { r.Reissue = "no-authkey" })}},
			Step{Deed: Ask, Ordinals: []int{0}}},
		{"GTW-17: it is",
			Facts{Accepted: true, Held: true, Replicas: 1, API: true, Ordinals: map[int]Replica{0: with(in("n0"), func(r *Replica) { r.Reissue, r.Gone = "no-authkey", true })}},
			Step{Deed: Mint, Ordinals: []int{0}}},
		{"it is not: no key, and the question again later",
			Facts{Accepted: true, Held: true, Replicas: 1, API: true, Ordinals: map[int]Replica{0: with(in("n0"), func(r *Replica) { r.Reissue, r.Doubted = "no-authkey", true })}},
			Step{Deed: Rest, Wake: now.Add(time.Minute)}},
		{"GTW-17: one key in 30 s, whatever a relay says",
			Facts{Accepted: true, Held: true, Replicas: 1, API: true, Ordinals: map[int]Replica{0: with(fresh, func(r *Replica) { r.Pod, r.Reissue, r.Key = "p", "k1", key(10*time.Second) })}},
			Step{Deed: Rest, Wake: now.Add(20 * time.Second)}},
		{"GTW-17: then another",
			Facts{Accepted: true, Held: true, Replicas: 1, API: true, Ordinals: map[int]Replica{0: with(fresh, func(r *Replica) { r.Pod, r.Reissue, r.Key = "p", "k1", key(ReissuePause) })}},
			Step{Deed: Mint, Ordinals: []int{0}}},
		{"a relay that has not seen the newest key waits for nothing else",
			Facts{Accepted: true, Held: true, Replicas: 1, API: true, Ordinals: map[int]Replica{0: with(fresh, func(r *Replica) { r.Pod, r.Reissue, r.Key = "p", "k0", key(time.Minute) })}},
			Step{Deed: Rest, Wake: now.Add(59 * time.Minute)}},
		{"Tailscale's own image says the key itself",
			Facts{Accepted: true, Held: true, Replicas: 1, API: true, Ordinals: map[int]Replica{0: with(fresh, func(r *Replica) { r.Pod, r.Reissue, r.Key = "p", "tskey-auth-k1-x", key(time.Minute) })}},
			Step{Deed: Mint, Ordinals: []int{0}}},
		{"a state Secret that was deleted under a running relay",
			Facts{Accepted: true, Held: true, Replicas: 1, API: true, Ordinals: map[int]Replica{0: {Pod: "p", Ready: true, State: true, Config: true, Key: Key{ID: "k", Until: now}}}, Recorded: []Device{{0, "n0"}}},
			Step{Deed: Restart, Ordinals: []int{0}}},
		{"the device that another one has replaced goes",
			Facts{Accepted: true, Held: true, Replicas: 1, API: true, Ordinals: map[int]Replica{0: in("n9")}, Recorded: []Device{{0, "n0"}, {0, "n9"}}},
			Step{Deed: DropDevices, Devices: []Device{{0, "n0"}}}},
		{"but not while there is no other",
			Facts{Accepted: true, Held: true, Replicas: 1, API: true, Ordinals: map[int]Replica{0: with(fresh, func(r *Replica) { r.Key = key(0) })}, Recorded: []Device{{0, "n0"}}},
			Step{Deed: Rest}},
		{"GTW-15: scaled down, the pod still drains",
			Facts{Accepted: true, Held: true, Replicas: 1, API: true, Set: true, SetReplicas: 1, Ordinals: map[int]Replica{0: in("n0"), 1: in("n1")}, Recorded: []Device{{0, "n0"}}},
			Step{Deed: Rest}},
		{"GTW-15: it is gone, and the StatefulSet would start it again",
			Facts{Accepted: true, Held: true, Replicas: 1, API: true, Set: true, SetReplicas: 2, Ordinals: map[int]Replica{0: in("n0"), 1: with(in("n1"), func(r *Replica) { r.Pod = "" })}},
			Step{Deed: Rest}},
		{"GTW-15: its device is written down first",
			Facts{Accepted: true, Held: true, Replicas: 1, API: true, Set: true, SetReplicas: 1, Ordinals: map[int]Replica{0: in("n0"), 1: with(in("n1"), func(r *Replica) { r.Pod = "" })}, Recorded: []Device{{0, "n0"}}},
			Step{Deed: Record, Ordinals: []int{1}}},
		{"GTW-15: then its Secrets",
			Facts{Accepted: true, Held: true, Replicas: 1, API: true, Set: true, SetReplicas: 1, Ordinals: map[int]Replica{0: in("n0"), 1: with(in("n1"), func(r *Replica) { r.Pod = "" })}, Recorded: []Device{{0, "n0"}, {1, "n1"}}},
			Step{Deed: DropSecrets, Ordinals: []int{1}}},
		{"GTW-15: then the device",
			Facts{Accepted: true, Held: true, Replicas: 1, API: true, Set: true, SetReplicas: 1, Ordinals: map[int]Replica{0: in("n0")}, Recorded: []Device{{0, "n0"}, {1, "n1"}}},
			Step{Deed: DropDevices, Devices: []Device{{1, "n1"}}}},
		{"scaled down before it ever joined: its key first",
			Facts{Accepted: true, Held: true, Replicas: 0, API: true, Ordinals: map[int]Replica{0: with(fresh, func(r *Replica) { r.Key = key(0) })}},
			Step{Deed: DropKeys, Ordinals: []int{0}}},
		{"GTW-16: deleted: devices are written down",
			Facts{Deleting: true, Held: true, API: true, Set: true, Ordinals: map[int]Replica{0: in("n0")}},
			Step{Deed: Record, Ordinals: []int{0}}},
		{"GTW-16: then the pods go",
			Facts{Deleting: true, Held: true, API: true, Set: true, Ordinals: map[int]Replica{0: in("n0")}, Recorded: []Device{{0, "n0"}}},
			Step{Deed: EndSet}},
		{"GTW-16: which takes its time",
			Facts{Deleting: true, Held: true, API: true, Set: true, SetEnding: true, Ordinals: map[int]Replica{0: in("n0")}, Recorded: []Device{{0, "n0"}}},
			Step{Deed: Rest}},
		{"GTW-16: also after the StatefulSet",
			Facts{Deleting: true, Held: true, API: true, Ordinals: map[int]Replica{0: in("n0")}, Recorded: []Device{{0, "n0"}}},
			Step{Deed: Rest, Ordinals: []int{0}}},
		{"GTW-16: the API is away: a key holds its Secret until it dies",
			Facts{Deleting: true, Held: true, Ordinals: map[int]Replica{0: with(fresh, func(r *Replica) { r.Key = key(time.Minute) })}},
			Step{Deed: Rest, Blocked: true, Wake: now.Add(59 * time.Minute)}},
		{"GTW-16: the API is away: devices hold the group",
			Facts{Deleting: true, Held: true, API: true, After: now.Add(time.Minute), Recorded: []Device{{0, "n0"}}},
			Step{Deed: Rest, Blocked: true, Wake: now.Add(time.Minute)}},
		{"GTW-04: an administrator lets it go",
			Facts{Deleting: true, Held: true, SkipRemote: true, Recorded: []Device{{0, "n0"}}},
			Step{Deed: Release}},
		{"GTW-04: with its Secrets",
			Facts{Deleting: true, Held: true, SkipRemote: true, Ordinals: map[int]Replica{0: with(fresh, func(r *Replica) { r.Key = key(0) })}},
			Step{Deed: DropSecrets, Ordinals: []int{0}}},
	} {
		if got := Next(x.f, now); !reflect.DeepEqual(got, x.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", x.why, got, x.want)
		}
	}
}

// A world simulates a cluster and a tailnet that execute the actions, or fail to.
type world struct {
	t       *testing.T
	r       *rand.Rand
	now     time.Time
	f       Facts
	keys    map[string]int // unused keys at Tailscale: ID -> ordinal
	devices map[string]int // at Tailscale
	minted  map[int]time.Time
	n       int
	calm    bool // no manual deletions
}

// whole reports whether each replica has one device and there are no other devices.
func (w *world) whole() bool {
	for i := range w.f.Replicas {
		r := w.f.Ordinals[i]
		if _, there := w.devices[r.Node]; !there || !r.Ready || r.Key.AtHand {
			return false
		}
	}
	return len(w.devices) == w.f.Replicas && len(w.f.Ordinals) == w.f.Replicas && len(w.f.Recorded) <= w.f.Replicas
}

func (w *world) fails() bool { return w.r.IntN(4) == 0 }

func (w *world) each(s Step, f func(i int, r *Replica)) {
	for _, i := range s.Ordinals {
		r := w.f.Ordinals[i]
		f(i, &r)
		w.f.Ordinals[i] = r
	}
}

func (w *world) forget(i int) {
	if r := w.f.Ordinals[i]; r.Pod == "" && !r.State && !r.Config {
		delete(w.f.Ordinals, i)
	}
}

// act executes an action. Each of its requests may fail, or may be the last one before a crash.
func (w *world) act(s Step) {
	switch s.Deed {
	case Hold:
		w.f.Held = true
	case Release:
		w.f.Held = false
	case EndSet:
		w.f.SetEnding = true
	case Record:
		for i, r := range w.f.Ordinals {
			if d := (Device{i, r.Node}); r.Node != "" && !slices.Contains(w.f.Recorded, d) {
				w.f.Recorded = append(w.f.Recorded, d)
			}
		}
	case Restart:
		w.each(s, func(_ int, r *Replica) { r.Pod, r.Ready = "", false })
	case Clean:
		w.each(s, func(_ int, r *Replica) { r.Key.AtHand = false })
	case Mint:
		w.each(s, func(i int, r *Replica) {
			if last, had := w.minted[i]; had && w.now.Sub(last) < ReissuePause {
				w.t.Errorf("%d has a key after %v", i, w.now.Sub(last))
			}
			if r.Key.AtHand && w.fails() {
				return
			}
			delete(w.keys, r.Key.ID)
			r.Key = Key{Begun: true, Until: w.now.Add(KeyLife)}
			if w.fails() {
				return // before the API received it
			}
			w.n++
			id := fmt.Sprint("k", w.n)
			w.keys[id], w.minted[i] = i, w.now
			if w.fails() {
				return // the answer is lost, or the process ends
			}
			r.Key = Key{ID: id, AtHand: true, Until: w.now.Add(KeyLife)}
			if r.Gone {
				r.Node, r.Joined, r.Gone = "", false, false
			}
		})
	case Tidy:
		w.each(s, func(i int, r *Replica) {
			for id, of := range w.keys {
				if of == i {
					delete(w.keys, id)
				}
			}
			// The pause also applies to a key that was begun.
			r.Key = Key{Until: r.Key.Until}
		})
	case DropKeys:
		w.each(s, func(_ int, r *Replica) { delete(w.keys, r.Key.ID); r.Key.AtHand = false })
	case DropSecrets:
		w.each(s, func(i int, r *Replica) {
			if r.Pod != "" {
				w.t.Errorf("the Secrets of %d are deleted under its pod", i)
			}
			*r = Replica{Pod: r.Pod}
		})
		for _, i := range s.Ordinals {
			w.forget(i)
		}
	case DropDevices:
		for _, d := range s.Devices {
			if w.f.Ordinals[d.Ordinal].Node == d.Node {
				w.t.Errorf("the device %s of %d is deleted while it is in use", d.Node, d.Ordinal)
			}
			delete(w.devices, d.Node)
			w.f.Recorded = slices.DeleteFunc(w.f.Recorded, func(o Device) bool { return o == d })
		}
	case Ask:
		w.each(s, func(_ int, r *Replica) { _, there := w.devices[r.Node]; r.Gone, r.Doubted = !there, there })
	}
}

// cluster simulates the other controllers between two reconciles.
func (w *world) cluster() {
	w.now = w.now.Add(time.Duration(w.r.IntN(20_000)) * time.Millisecond)
	w.f.API = w.r.IntN(5) > 0
	if w.f.SetEnding && w.r.IntN(2) == 0 {
		w.f.Set, w.f.SetEnding = false, false
	}
	running := 0
	if w.f.Set && !w.f.SetEnding {
		if !w.f.Deleting {
			w.f.SetReplicas = w.f.Replicas
		}
		running = w.f.SetReplicas
	}
	for i := range running {
		r := w.f.Ordinals[i]
		if !w.f.Deleting {
			r.State, r.Config = true, true
		}
		if r.Pod == "" && r.State {
			w.n++
			r.Pod, r.RanIn = fmt.Sprint("p", w.n), ""
		}
		w.f.Ordinals[i] = r
	}
	for i, r := range w.f.Ordinals {
		r.Gone, r.Doubted = false, false
		_, there := w.devices[r.Node]
		_, good := w.keys[r.Key.ID]
		switch {
		case r.Pod != "" && i >= running:
			if w.r.IntN(2) == 0 {
				r.Pod, r.Ready = "", false
			}
		case r.Pod == "" || !r.State:
		case r.RanIn != r.Pod:
			r.RanIn, r.Reissue = r.Pod, ""
		case there:
			r.Ready, r.Joined, r.Reissue = true, true, ""
		case r.Key.AtHand && good && w.now.Before(r.Key.Until):
			delete(w.keys, r.Key.ID)
			w.n++
			r.Node = fmt.Sprint("n", w.n)
			w.devices[r.Node] = i
		case r.Key.AtHand:
			r.Reissue = r.Key.ID
		default:
			r.Reissue = "no-authkey"
		}
		w.f.Ordinals[i] = r
		w.forget(i)
	}
	// The report at the end of a reconcile.
	if w.f.Held && w.r.IntN(2) == 0 {
		w.act(Step{Deed: Record})
	}
	if !w.calm && w.r.IntN(40) == 0 { // manual changes
		for node := range w.devices {
			delete(w.devices, node)
			break
		}
	}
}

// GTW-15, GTW-16, GTW-17: with any failure and any crash, no replica gets keys faster than allowed
// and nothing in use is deleted. Each group reaches its desired state, and after its deletion
// nothing is left.
func TestWorlds(t *testing.T) {
	for seed := range uint64(300) {
		w := &world{t: t, r: rand.New(rand.NewPCG(seed, 1)), now: now, keys: map[string]int{}, devices: map[string]int{}, minted: map[int]time.Time{},
			f: Facts{Accepted: true, Replicas: 1 + int(seed%4), Ordinals: map[int]Replica{}}}
		look := func() {
			for range w.r.IntN(12) {
				if s := Next(w.f, w.now); s.Deed != Rest {
					w.act(s)
				}
			}
			if w.f.Held && !w.f.Deleting {
				w.f.Set = true
			}
		}
		for i := range 150 {
			if i == 70 {
				w.f.Replicas = w.r.IntN(5)
			}
			for o := range w.f.Replicas {
				r := w.f.Ordinals[o]
				r.State, r.Config = true, true
				w.f.Ordinals[o] = r
			}
			look()
			w.cluster()
		}
		w.calm = true
		rounds := 0
		for ; !w.whole() && rounds < 3000; rounds++ {
			look()
			w.cluster()
		}
		if !w.whole() {
			t.Fatalf("seed %d, after %d rounds: %+v, devices %v", seed, rounds, w.f, w.devices)
		}
		w.f.Deleting = true
		for rounds = 0; w.f.Held && rounds < 3000; rounds++ {
			look()
			w.cluster()
		}
		for id := range w.keys { // keys without a record have expired
			if last := w.minted[w.keys[id]]; w.now.Sub(last) >= KeyLife {
				delete(w.keys, id)
			}
		}
		if w.f.Held || len(w.f.Ordinals)+len(w.keys)+len(w.devices)+len(w.f.Recorded) > 0 || w.f.Set {
			t.Fatalf("seed %d, after %d rounds: %+v, keys %v, devices %v", seed, rounds, w.f, w.keys, w.devices)
		}
	}
}
