package gateway

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"
)

var groupTestTime = time.Date(2026, 11, 22, 5, 0, 0, 0, time.UTC)

// joinedReplica returns a replica whose device has joined and whose key was removed.
func joinedReplica(node string) RelayReplica {
	return RelayReplica{Pod: "p", Ready: true, WriterPod: "p", State: true, Config: true, Node: node, Joined: true, Key: AuthKeyState{ID: "k", Until: groupTestTime.Add(-time.Hour)}}
}

func TestNextGroupStep(t *testing.T) {
	fresh := RelayReplica{State: true, Config: true}
	key := func(since time.Duration) AuthKeyState {
		return AuthKeyState{ID: "k1", Stored: true, Until: groupTestTime.Add(AuthKeyLifetime - since)}
	}
	with := func(r RelayReplica, change func(*RelayReplica)) RelayReplica { change(&r); return r }
	for _, x := range []struct {
		why  string
		f    GroupFacts
		want GroupStep
	}{
		{"nothing is created before the finalizer",
			GroupFacts{Accepted: true, Replicas: 2, HasClient: true, Ordinals: map[int]RelayReplica{0: fresh}},
			GroupStep{Action: GroupAddFinalizer}},
		{"a deleted group never gets the finalizer",
			GroupFacts{Deleting: true, Accepted: true, Replicas: 2, HasClient: true, Ordinals: map[int]RelayReplica{0: fresh}},
			GroupStep{Action: GroupWait}},
		{"a group that is not accepted gets nothing and loses nothing",
			GroupFacts{HasFinalizer: true, Replicas: 1, HasClient: true, Ordinals: map[int]RelayReplica{0: fresh, 1: joinedReplica("n1")}},
			GroupStep{Action: GroupWait}},
		{"missing keys are created together",
			GroupFacts{Accepted: true, HasFinalizer: true, Replicas: 3, HasClient: true, Ordinals: map[int]RelayReplica{0: fresh, 1: joinedReplica("n1"), 2: fresh}},
			GroupStep{Action: GroupIssueKeys, Ordinals: []int{0, 2}}},
		{"without the API nothing is created, and its return triggers a reconcile",
			GroupFacts{Accepted: true, HasFinalizer: true, Replicas: 1, Ordinals: map[int]RelayReplica{0: fresh}},
			GroupStep{Action: GroupWait}},
		{"after a failure it waits",
			GroupFacts{Accepted: true, HasFinalizer: true, Replicas: 1, HasClient: true, NotBefore: groupTestTime.Add(time.Second), Ordinals: map[int]RelayReplica{0: fresh}},
			GroupStep{Action: GroupWait, Wake: groupTestTime.Add(time.Second)}},
		{"a stored key is enough, and its expiry is checked",
			GroupFacts{Accepted: true, HasFinalizer: true, Replicas: 1, HasClient: true, Ordinals: map[int]RelayReplica{0: with(fresh, func(r *RelayReplica) { r.Pod, r.Key = "p", key(time.Minute) })}},
			GroupStep{Action: GroupWait, Wake: groupTestTime.Add(59 * time.Minute)}},
		{"a key that expired unused is replaced if a pod needs it",
			GroupFacts{Accepted: true, HasFinalizer: true, Replicas: 1, HasClient: true, Ordinals: map[int]RelayReplica{0: with(fresh, func(r *RelayReplica) { r.Pod, r.Key = "p", key(AuthKeyLifetime) })}},
			GroupStep{Action: GroupIssueKeys, Ordinals: []int{0}}},
		{"but not each hour for a pod that does not start",
			GroupFacts{Accepted: true, HasFinalizer: true, Replicas: 1, HasClient: true, Ordinals: map[int]RelayReplica{0: with(fresh, func(r *RelayReplica) { r.Key = key(AuthKeyLifetime) })}},
			GroupStep{Action: GroupWait}},
		{"a used key is deleted",
			GroupFacts{Accepted: true, HasFinalizer: true, Replicas: 1, HasClient: true, Ordinals: map[int]RelayReplica{0: with(joinedReplica("n0"), func(r *RelayReplica) { r.Key = key(0) })}},
			GroupStep{Action: GroupRemoveUsedKeys, Ordinals: []int{0}}},
		{"but not before the device's keys are stored",
			GroupFacts{Accepted: true, HasFinalizer: true, Replicas: 1, HasClient: true, Ordinals: map[int]RelayReplica{0: with(joinedReplica("n0"), func(r *RelayReplica) { r.Key, r.Joined = key(0), false })}},
			GroupStep{Action: GroupWait, Wake: groupTestTime.Add(AuthKeyLifetime)}},
		{"a recorded key is searched before the next one",
			GroupFacts{Accepted: true, HasFinalizer: true, Replicas: 1, HasClient: true, Ordinals: map[int]RelayReplica{0: with(fresh, func(r *RelayReplica) { r.Key = AuthKeyState{Pending: true, Until: groupTestTime.Add(time.Minute)} })}},
			GroupStep{Action: GroupDeletePendingKeys, Ordinals: []int{0}}},
		{"unless it is expired",
			GroupFacts{Accepted: true, HasFinalizer: true, Replicas: 1, HasClient: true, Ordinals: map[int]RelayReplica{0: with(fresh, func(r *RelayReplica) { r.Pod, r.Key = "p", AuthKeyState{Pending: true, Until: groupTestTime} })}},
			GroupStep{Action: GroupIssueKeys, Ordinals: []int{0}}},
		{"GTW-17: a relay has lost its device: check whether it is deleted",
			GroupFacts{Accepted: true, HasFinalizer: true, Replicas: 1, HasClient: true, Ordinals: map[int]RelayReplica{0: with(joinedReplica("n0"), func(r *RelayReplica) { r.Reissue = "no-authkey" })}},
			GroupStep{Action: GroupCheckDevices, Ordinals: []int{0}}},
		{"GTW-17: it is deleted",
			GroupFacts{Accepted: true, HasFinalizer: true, Replicas: 1, HasClient: true, Ordinals: map[int]RelayReplica{0: with(joinedReplica("n0"), func(r *RelayReplica) { r.Reissue, r.DeviceGone = "no-authkey", true })}},
			GroupStep{Action: GroupIssueKeys, Ordinals: []int{0}}},
		{"it is not deleted: no key, and a check later",
			GroupFacts{Accepted: true, HasFinalizer: true, Replicas: 1, HasClient: true, Ordinals: map[int]RelayReplica{0: with(joinedReplica("n0"), func(r *RelayReplica) { r.Reissue, r.DeviceExists = "no-authkey", true })}},
			GroupStep{Action: GroupWait, Wake: groupTestTime.Add(time.Minute)}},
		{"GTW-17: one key in 30 s, whatever a relay reports",
			GroupFacts{Accepted: true, HasFinalizer: true, Replicas: 1, HasClient: true, Ordinals: map[int]RelayReplica{0: with(fresh, func(r *RelayReplica) { r.Pod, r.Reissue, r.Key = "p", "k1", key(10*time.Second) })}},
			GroupStep{Action: GroupWait, Wake: groupTestTime.Add(20 * time.Second)}},
		{"GTW-17: then another",
			GroupFacts{Accepted: true, HasFinalizer: true, Replicas: 1, HasClient: true, Ordinals: map[int]RelayReplica{0: with(fresh, func(r *RelayReplica) { r.Pod, r.Reissue, r.Key = "p", "k1", key(AuthKeyPause) })}},
			GroupStep{Action: GroupIssueKeys, Ordinals: []int{0}}},
		{"a relay that has not seen the newest key waits for nothing else",
			GroupFacts{Accepted: true, HasFinalizer: true, Replicas: 1, HasClient: true, Ordinals: map[int]RelayReplica{0: with(fresh, func(r *RelayReplica) { r.Pod, r.Reissue, r.Key = "p", "k0", key(time.Minute) })}},
			GroupStep{Action: GroupWait, Wake: groupTestTime.Add(59 * time.Minute)}},
		{"Tailscale's own image reports the key itself",
			GroupFacts{Accepted: true, HasFinalizer: true, Replicas: 1, HasClient: true, Ordinals: map[int]RelayReplica{0: with(fresh, func(r *RelayReplica) { r.Pod, r.Reissue, r.Key = "p", "tskey-auth-k1-x", key(time.Minute) })}},
			GroupStep{Action: GroupIssueKeys, Ordinals: []int{0}}},
		{"a state Secret that was deleted while its relay runs",
			GroupFacts{Accepted: true, HasFinalizer: true, Replicas: 1, HasClient: true, Ordinals: map[int]RelayReplica{0: {Pod: "p", Ready: true, State: true, Config: true, Key: AuthKeyState{ID: "k", Until: groupTestTime}}}, Recorded: []RecordedDevice{{0, "n0"}}},
			GroupStep{Action: GroupRestartPods, Ordinals: []int{0}}},
		{"a replaced device is deleted",
			GroupFacts{Accepted: true, HasFinalizer: true, Replicas: 1, HasClient: true, Ordinals: map[int]RelayReplica{0: joinedReplica("n9")}, Recorded: []RecordedDevice{{0, "n0"}, {0, "n9"}}},
			GroupStep{Action: GroupDeleteDevices, Devices: []RecordedDevice{{0, "n0"}}}},
		{"but not while there is no other",
			GroupFacts{Accepted: true, HasFinalizer: true, Replicas: 1, HasClient: true, Ordinals: map[int]RelayReplica{0: with(fresh, func(r *RelayReplica) { r.Key = key(0) })}, Recorded: []RecordedDevice{{0, "n0"}}},
			GroupStep{Action: GroupWait}},
		{"GTW-15: scaled down, the pod still drains",
			GroupFacts{Accepted: true, HasFinalizer: true, Replicas: 1, HasClient: true, SetExists: true, SetReplicas: 1, Ordinals: map[int]RelayReplica{0: joinedReplica("n0"), 1: joinedReplica("n1")}, Recorded: []RecordedDevice{{0, "n0"}}},
			GroupStep{Action: GroupWait}},
		{"GTW-15: it is deleted, and the StatefulSet would start it again",
			GroupFacts{Accepted: true, HasFinalizer: true, Replicas: 1, HasClient: true, SetExists: true, SetReplicas: 2, Ordinals: map[int]RelayReplica{0: joinedReplica("n0"), 1: with(joinedReplica("n1"), func(r *RelayReplica) { r.Pod = "" })}},
			GroupStep{Action: GroupWait}},
		{"GTW-15: its device is recorded first",
			GroupFacts{Accepted: true, HasFinalizer: true, Replicas: 1, HasClient: true, SetExists: true, SetReplicas: 1, Ordinals: map[int]RelayReplica{0: joinedReplica("n0"), 1: with(joinedReplica("n1"), func(r *RelayReplica) { r.Pod = "" })}, Recorded: []RecordedDevice{{0, "n0"}}},
			GroupStep{Action: GroupRecordDevices, Ordinals: []int{1}}},
		{"GTW-15: then its Secrets",
			GroupFacts{Accepted: true, HasFinalizer: true, Replicas: 1, HasClient: true, SetExists: true, SetReplicas: 1, Ordinals: map[int]RelayReplica{0: joinedReplica("n0"), 1: with(joinedReplica("n1"), func(r *RelayReplica) { r.Pod = "" })}, Recorded: []RecordedDevice{{0, "n0"}, {1, "n1"}}},
			GroupStep{Action: GroupDeleteSecrets, Ordinals: []int{1}}},
		{"GTW-15: then the device",
			GroupFacts{Accepted: true, HasFinalizer: true, Replicas: 1, HasClient: true, SetExists: true, SetReplicas: 1, Ordinals: map[int]RelayReplica{0: joinedReplica("n0")}, Recorded: []RecordedDevice{{0, "n0"}, {1, "n1"}}},
			GroupStep{Action: GroupDeleteDevices, Devices: []RecordedDevice{{1, "n1"}}}},
		{"scaled down before it ever joined: its key first",
			GroupFacts{Accepted: true, HasFinalizer: true, Replicas: 0, HasClient: true, Ordinals: map[int]RelayReplica{0: with(fresh, func(r *RelayReplica) { r.Key = key(0) })}},
			GroupStep{Action: GroupDeleteKeys, Ordinals: []int{0}}},
		{"GTW-16: deleted: devices are recorded",
			GroupFacts{Deleting: true, HasFinalizer: true, HasClient: true, SetExists: true, Ordinals: map[int]RelayReplica{0: joinedReplica("n0")}},
			GroupStep{Action: GroupRecordDevices, Ordinals: []int{0}}},
		{"GTW-16: then the pods are deleted",
			GroupFacts{Deleting: true, HasFinalizer: true, HasClient: true, SetExists: true, Ordinals: map[int]RelayReplica{0: joinedReplica("n0")}, Recorded: []RecordedDevice{{0, "n0"}}},
			GroupStep{Action: GroupDeleteSet}},
		{"GTW-16: which takes its time",
			GroupFacts{Deleting: true, HasFinalizer: true, HasClient: true, SetExists: true, SetDeleting: true, Ordinals: map[int]RelayReplica{0: joinedReplica("n0")}, Recorded: []RecordedDevice{{0, "n0"}}},
			GroupStep{Action: GroupWait}},
		{"GTW-16: also after the StatefulSet",
			GroupFacts{Deleting: true, HasFinalizer: true, HasClient: true, Ordinals: map[int]RelayReplica{0: joinedReplica("n0")}, Recorded: []RecordedDevice{{0, "n0"}}},
			GroupStep{Action: GroupWait, Ordinals: []int{0}}},
		{"GTW-16: the API is unavailable: a key holds its Secret until it expires",
			GroupFacts{Deleting: true, HasFinalizer: true, Ordinals: map[int]RelayReplica{0: with(fresh, func(r *RelayReplica) { r.Key = key(time.Minute) })}},
			GroupStep{Action: GroupWait, Blocked: true, Wake: groupTestTime.Add(59 * time.Minute)}},
		{"GTW-16: the API is unavailable: devices hold the group",
			GroupFacts{Deleting: true, HasFinalizer: true, HasClient: true, NotBefore: groupTestTime.Add(time.Minute), Recorded: []RecordedDevice{{0, "n0"}}},
			GroupStep{Action: GroupWait, Blocked: true, Wake: groupTestTime.Add(time.Minute)}},
		{"GTW-04: an administrator skips the cleanup",
			GroupFacts{Deleting: true, HasFinalizer: true, SkipRemote: true, Recorded: []RecordedDevice{{0, "n0"}}},
			GroupStep{Action: GroupRemoveFinalizer}},
		{"GTW-04: with its Secrets",
			GroupFacts{Deleting: true, HasFinalizer: true, SkipRemote: true, Ordinals: map[int]RelayReplica{0: with(fresh, func(r *RelayReplica) { r.Key = key(0) })}},
			GroupStep{Action: GroupDeleteSecrets, Ordinals: []int{0}}},
	} {
		if got := NextGroupStep(x.f, groupTestTime); !reflect.DeepEqual(got, x.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", x.why, got, x.want)
		}
	}
}

// A groupEnv simulates a cluster and a tailnet that execute the actions, or fail to.
type groupEnv struct {
	t       *testing.T
	r       *rand.Rand
	now     time.Time
	f       GroupFacts
	keys    map[string]int // unused keys at Tailscale: ID -> ordinal
	devices map[string]int // at Tailscale
	issued  map[int]time.Time
	n       int
	calm    bool // no manual deletions
}

// settled reports whether each replica has one device and there are no other devices.
func (w *groupEnv) settled() bool {
	for i := range w.f.Replicas {
		r := w.f.Ordinals[i]
		if _, exists := w.devices[r.Node]; !exists || !r.Ready || r.Key.Stored {
			return false
		}
	}
	return len(w.devices) == w.f.Replicas && len(w.f.Ordinals) == w.f.Replicas && len(w.f.Recorded) <= w.f.Replicas
}

func (w *groupEnv) fails() bool { return w.r.IntN(4) == 0 }

func (w *groupEnv) each(s GroupStep, f func(i int, r *RelayReplica)) {
	for _, i := range s.Ordinals {
		r := w.f.Ordinals[i]
		f(i, &r)
		w.f.Ordinals[i] = r
	}
}

func (w *groupEnv) forget(i int) {
	if r := w.f.Ordinals[i]; r.Pod == "" && !r.State && !r.Config {
		delete(w.f.Ordinals, i)
	}
}

// apply executes an action. Each of its requests may fail, or may be the last one before a crash.
func (w *groupEnv) apply(s GroupStep) {
	switch s.Action {
	case GroupAddFinalizer:
		w.f.HasFinalizer = true
	case GroupRemoveFinalizer:
		w.f.HasFinalizer = false
	case GroupDeleteSet:
		w.f.SetDeleting = true
	case GroupRecordDevices:
		for i, r := range w.f.Ordinals {
			if d := (RecordedDevice{i, r.Node}); r.Node != "" && !slices.Contains(w.f.Recorded, d) {
				w.f.Recorded = append(w.f.Recorded, d)
			}
		}
	case GroupRestartPods:
		w.each(s, func(_ int, r *RelayReplica) { r.Pod, r.Ready = "", false })
	case GroupRemoveUsedKeys:
		w.each(s, func(_ int, r *RelayReplica) { r.Key.Stored = false })
	case GroupIssueKeys:
		w.each(s, func(i int, r *RelayReplica) {
			if last, had := w.issued[i]; had && w.now.Sub(last) < AuthKeyPause {
				w.t.Errorf("%d has a key after %v", i, w.now.Sub(last))
			}
			if r.Key.Stored && w.fails() {
				return
			}
			delete(w.keys, r.Key.ID)
			r.Key = AuthKeyState{Pending: true, Until: w.now.Add(AuthKeyLifetime)}
			if w.fails() {
				return // before the API received it
			}
			w.n++
			id := fmt.Sprint("k", w.n)
			w.keys[id], w.issued[i] = i, w.now
			if w.fails() {
				return // the answer is lost, or the process ends
			}
			r.Key = AuthKeyState{ID: id, Stored: true, Until: w.now.Add(AuthKeyLifetime)}
			if r.DeviceGone {
				r.Node, r.Joined, r.DeviceGone = "", false, false
			}
		})
	case GroupDeletePendingKeys:
		w.each(s, func(i int, r *RelayReplica) {
			for id, of := range w.keys {
				if of == i {
					delete(w.keys, id)
				}
			}
			// The pause also applies to a key that was begun.
			r.Key = AuthKeyState{Until: r.Key.Until}
		})
	case GroupDeleteKeys:
		w.each(s, func(_ int, r *RelayReplica) { delete(w.keys, r.Key.ID); r.Key.Stored = false })
	case GroupDeleteSecrets:
		w.each(s, func(i int, r *RelayReplica) {
			if r.Pod != "" {
				w.t.Errorf("the Secrets of %d are deleted under its pod", i)
			}
			*r = RelayReplica{Pod: r.Pod}
		})
		for _, i := range s.Ordinals {
			w.forget(i)
		}
	case GroupDeleteDevices:
		for _, d := range s.Devices {
			if w.f.Ordinals[d.Ordinal].Node == d.Node {
				w.t.Errorf("the device %s of %d is deleted while it is in use", d.Node, d.Ordinal)
			}
			delete(w.devices, d.Node)
			w.f.Recorded = slices.DeleteFunc(w.f.Recorded, func(o RecordedDevice) bool { return o == d })
		}
	case GroupCheckDevices:
		w.each(s, func(_ int, r *RelayReplica) {
			_, exists := w.devices[r.Node]
			r.DeviceGone, r.DeviceExists = !exists, exists
		})
	}
}

// cluster simulates the other controllers between two reconciles.
func (w *groupEnv) cluster() {
	w.now = w.now.Add(time.Duration(w.r.IntN(20_000)) * time.Millisecond)
	w.f.HasClient = w.r.IntN(5) > 0
	if w.f.SetDeleting && w.r.IntN(2) == 0 {
		w.f.SetExists, w.f.SetDeleting = false, false
	}
	running := 0
	if w.f.SetExists && !w.f.SetDeleting {
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
			r.Pod, r.WriterPod = fmt.Sprint("p", w.n), ""
		}
		w.f.Ordinals[i] = r
	}
	for i, r := range w.f.Ordinals {
		r.DeviceGone, r.DeviceExists = false, false
		_, exists := w.devices[r.Node]
		_, good := w.keys[r.Key.ID]
		switch {
		case r.Pod != "" && i >= running:
			if w.r.IntN(2) == 0 {
				r.Pod, r.Ready = "", false
			}
		case r.Pod == "" || !r.State:
		case r.WriterPod != r.Pod:
			r.WriterPod, r.Reissue = r.Pod, ""
		case exists:
			r.Ready, r.Joined, r.Reissue = true, true, ""
		case r.Key.Stored && good && w.now.Before(r.Key.Until):
			delete(w.keys, r.Key.ID)
			w.n++
			r.Node = fmt.Sprint("n", w.n)
			w.devices[r.Node] = i
		case r.Key.Stored:
			r.Reissue = r.Key.ID
		default:
			r.Reissue = "no-authkey"
		}
		w.f.Ordinals[i] = r
		w.forget(i)
	}
	// The report at the end of a reconcile.
	if w.f.HasFinalizer && w.r.IntN(2) == 0 {
		w.apply(GroupStep{Action: GroupRecordDevices})
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
func TestGroupLifecycle(t *testing.T) {
	for seed := range uint64(300) {
		w := &groupEnv{t: t, r: rand.New(rand.NewPCG(seed, 1)), now: groupTestTime, keys: map[string]int{}, devices: map[string]int{}, issued: map[int]time.Time{},
			f: GroupFacts{Accepted: true, Replicas: 1 + int(seed%4), Ordinals: map[int]RelayReplica{}}}
		reconcile := func() {
			for range w.r.IntN(12) {
				if s := NextGroupStep(w.f, w.now); s.Action != GroupWait {
					w.apply(s)
				}
			}
			if w.f.HasFinalizer && !w.f.Deleting {
				w.f.SetExists = true
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
			reconcile()
			w.cluster()
		}
		w.calm = true
		rounds := 0
		for ; !w.settled() && rounds < 3000; rounds++ {
			reconcile()
			w.cluster()
		}
		if !w.settled() {
			t.Fatalf("seed %d, after %d rounds: %+v, devices %v", seed, rounds, w.f, w.devices)
		}
		w.f.Deleting = true
		for rounds = 0; w.f.HasFinalizer && rounds < 3000; rounds++ {
			reconcile()
			w.cluster()
		}
		for id := range w.keys { // keys without a record have expired
			if last := w.issued[w.keys[id]]; w.now.Sub(last) >= AuthKeyLifetime {
				delete(w.keys, id)
			}
		}
		switch {
		case w.f.HasFinalizer:
			t.Fatalf("seed: w.f.HasFinalizer is true; seed = %d, rounds = %d, %+v, %v, %v", seed, rounds, w.f, w.keys, w.devices)
		case len(w.f.Ordinals)+len(w.keys)+len(w.devices)+len(w.f.Recorded) > 0:
			t.Fatalf("seed: got %v, want at most 0; seed = %d; rounds = %d",
				len(w.f.Ordinals)+len(w.keys)+len(w.devices)+len(w.f.Recorded), seed, rounds)
		case w.f.SetExists:
			t.Fatalf("seed: w.f.SetExists is true; seed = %d, rounds = %d, %+v, %v, %v", seed, rounds, w.f, w.keys, w.devices)
		}
	}
}
