// Package upkeep decides what a group of relays needs next: which replica a key,
// and which key, Secret, device or pod must go, in which order. It keeps law 9:
// what may be left behind at Tailscale is written down before it is made, and
// whatever waits has a wake time that follows from what is stored.
//
// It is pure: no clock, no I/O.
package upkeep

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	// KeyLife is how long an auth key lets a relay in.
	KeyLife = time.Hour

	// ReissuePause is between two keys for one replica, whatever it says.
	ReissuePause = 30 * time.Second

	// Grace is how long a group that was made for others stays after its last user.
	Grace = 10 * time.Minute

	// doubtPause is until a device is asked for again that a relay says it has lost,
	// and that is there.
	doubtPause = time.Minute
)

// A Key is the auth key of a replica, as its config Secret tells.
//
//	none --> Begun --> AtHand --> used (ID and Until stay: when the next may be made)
type Key struct {
	Begun  bool   // one may have been made whose id nobody knows
	ID     string // of the last one
	AtHand bool   // it lies in the Secret
	Until  time.Time
}

// open says whether there may be a key that still lets somebody in.
func (k Key) open(now time.Time) bool { return (k.Begun || k.AtHand) && now.Before(k.Until) }

// A Replica is all that is known of one ordinal.
type Replica struct {
	Pod   string // its UID; "": there is none
	Ready bool   // the pod is

	State, Config bool // its Secrets are there

	// As the state Secret says.
	Node    string // the stable id of its device
	RanIn   string // the UID of the pod that wrote there last
	Joined  bool   // the device's keys are stored too
	Reissue string // the relay wants a key: the id of the one that failed, or another word

	Key Key

	// Gone and Doubted are what the API said in this look about Node: that there is
	// no such device, or that there is.
	Gone, Doubted bool
}

// A Device is a device that is written down in the status.
type Device struct {
	Ordinal int
	Node    string
}

// Facts are all that is known of a group.
type Facts struct {
	Deleting, Held bool // Held: by our finalizer
	SkipRemote     bool // an administrator lets it go without cleaning up at Tailscale
	Accepted       bool

	Replicas    int  // that are wished
	Set         bool // the StatefulSet is there
	SetEnding   bool
	SetReplicas int // that it is to have

	Ordinals map[int]Replica // of which there is anything, or is to be
	Recorded []Device

	API   bool      // there is a client for the tailnet
	After time.Time // the API is not asked before
}

// A Deed is what is to be done next.
type Deed string

// The deeds. Each but Rest is followed by another decision.
const (
	Rest        Deed = "rest"
	Hold        Deed = "hold"         // put the finalizer on
	Record      Deed = "record"       // write all devices into the status
	EndSet      Deed = "end set"      // delete the StatefulSet, its pods first
	Restart     Deed = "restart"      // delete the pods of Ordinals
	Clean       Deed = "clean"        // take used keys out of the config Secrets
	Tidy        Deed = "tidy"         // find keys that were begun, and delete them
	Ask         Deed = "ask"          // ask the API for the devices of Ordinals
	Mint        Deed = "mint"         // make keys, all of them together
	DropKeys    Deed = "drop keys"    // delete keys that nobody is to use any more
	DropSecrets Deed = "drop secrets" // both of each ordinal
	DropDevices Deed = "drop devices"
	Release     Deed = "release" // take the finalizer off
)

// A Step is a deed, and what it is about. With Rest, Wake is when to look again
// (zero: when something changes) and Blocked says that something at Tailscale is to
// be deleted, which cannot be asked for now.
type Step struct {
	Deed     Deed
	Ordinals []int
	Devices  []Device
	Wake     time.Time
	Blocked  bool
}

// Next decides what to do with a group.
func Next(f Facts, now time.Time) Step {
	d := decision{f, now, Step{Deed: Rest}}
	switch {
	case f.Deleting:
		d.end()
	case f.Accepted:
		d.keep()
	}
	return d.Step
}

type decision struct {
	Facts
	now time.Time
	Step
}

// do takes a deed for the ordinals that it is to be done for, if there are any.
func (d *decision) do(deed Deed, is func(i int, r Replica) bool) bool {
	var of []int
	for _, i := range slices.Sorted(maps.Keys(d.Facts.Ordinals)) {
		if is(i, d.Facts.Ordinals[i]) {
			of = append(of, i)
		}
	}
	if len(of) == 0 {
		return false
	}
	d.Step = Step{Deed: deed, Ordinals: of}
	return true
}

// remote is do for what the API is asked for. If it cannot be asked now, the deed
// waits, and what does not depend on it goes on.
func (d *decision) remote(deed Deed, is func(i int, r Replica) bool) bool {
	before := d.Step
	if !d.do(deed, is) {
		return false
	}
	if d.asks() {
		return true
	}
	before.Blocked = before.Blocked || deed == Tidy || deed == DropKeys
	d.Step = before
	d.wait(d.After)
	return false
}

func (d *decision) asks() bool { return d.API && !d.now.Before(d.After) }

// wait notes when to look again at the latest.
func (d *decision) wait(t time.Time) {
	if !t.IsZero() && t.After(d.now) && (d.Wake.IsZero() || t.Before(d.Wake)) {
		d.Wake = t
	}
}

func (d *decision) recorded(i int, node string) bool {
	return slices.Contains(d.Facts.Recorded, Device{i, node})
}

// keep is for a group that is to be.
func (d *decision) keep() {
	if !d.Held {
		if d.Replicas > 0 || len(d.Facts.Ordinals) > 0 {
			d.Step = Step{Deed: Hold}
		}
		return
	}
	wished := func(i int) bool { return i < d.Replicas }
	// leaves: nobody will start its pod again.
	leaves := func(i int, r Replica) bool { return !wished(i) && r.Pod == "" && (!d.Set || d.SetReplicas <= i) }
	now := d.now
	if d.do(Restart, func(i int, r Replica) bool { // it keeps its state in memory and will not write it again
		return wished(i) && r.Pod != "" && r.Ready && r.State && r.RanIn == ""
	}) || d.do(Clean, func(i int, r Replica) bool {
		return wished(i) && r.Key.AtHand && r.Joined && r.Node != "" && r.Reissue == ""
	}) || d.do(Record, func(i int, r Replica) bool {
		return leaves(i, r) && r.Node != "" && !d.recorded(i, r.Node)
	}) || d.remote(Tidy, func(i int, r Replica) bool {
		return r.Key.Begun && r.Key.open(now) && (wished(i) || leaves(i, r))
	}) || d.remote(Ask, func(i int, r Replica) bool {
		return wished(i) && d.due(r) && r.Node != "" && !r.Gone && !r.Doubted
	}) || d.remote(Mint, func(i int, r Replica) bool {
		return wished(i) && d.needs(r)
	}) || d.remote(DropKeys, func(i int, r Replica) bool {
		return leaves(i, r) && r.Key.AtHand && r.Key.open(now)
	}) || d.do(DropSecrets, func(i int, r Replica) bool {
		return leaves(i, r) && (r.State || r.Config) && !r.Key.open(now)
	}) || d.dropDevices(func(v Device) bool {
		r := d.Facts.Ordinals[v.Ordinal]
		if wished(v.Ordinal) {
			return r.Node != "" && r.Node != v.Node // another one has taken its place
		}
		return leaves(v.Ordinal, r) && !r.State
	}) {
		return
	}
	for i, r := range d.Facts.Ordinals {
		if r.Key.open(now) && (!wished(i) || r.Pod != "") {
			d.wait(r.Key.Until)
		}
		if wished(i) && r.Reissue != "" {
			d.wait(d.paused(r))
			if r.Doubted {
				d.wait(now.Add(doubtPause))
			}
		}
		if wished(i) && r.Node == "" && r.Pod != "" {
			d.wait(d.paused(r))
		}
	}
}

// paused is the end of the pause after the last key.
func (d *decision) paused(r Replica) time.Time {
	if r.Key.Until.IsZero() {
		return time.Time{}
	}
	return r.Key.Until.Add(ReissuePause - KeyLife)
}

// due says whether the relay asks for a key, and is to get one now: the one that it
// has failed, or it has none.
func (d *decision) due(r Replica) bool {
	return r.Reissue != "" && r.State && r.Config && !r.Key.Begun && !d.now.Before(d.paused(r)) &&
		(!r.Key.open(d.now) || Failed(r.Reissue, r.Key.ID))
}

// Failed reads what a relay says of a key that did not let it in: our relays say its
// id, Tailscale's own image the key itself.
func Failed(reissue, id string) bool {
	return id != "" && (reissue == id || strings.HasPrefix(reissue, "tskey-auth-"+id+"-"))
}

// needs says whether a replica is to get a key now.
func (d *decision) needs(r Replica) bool {
	switch {
	case !r.State || !r.Config || r.Key.Begun && r.Key.open(d.now):
		return false
	case r.Reissue != "":
		return d.due(r) && (r.Node == "" || r.Gone)
	case r.Node != "" || r.Key.open(d.now):
		return false
	}
	// A pod that nobody starts gets one key, and not one each hour.
	return r.Key.Until.IsZero() || r.Pod != "" && !d.now.Before(d.paused(r))
}

func (d *decision) dropDevices(is func(Device) bool) bool {
	var of []Device
	for _, v := range d.Facts.Recorded {
		if is(v) {
			of = append(of, v)
		}
	}
	if len(of) == 0 {
		return false
	}
	if !d.asks() {
		d.Blocked = true
		d.wait(d.After)
		return false
	}
	slices.SortFunc(of, func(a, b Device) int { return cmp.Or(cmp.Compare(a.Ordinal, b.Ordinal), cmp.Compare(a.Node, b.Node)) })
	d.Step = Step{Deed: DropDevices, Devices: of}
	return true
}

// end is for a group that is to go: pods, then Secrets, then devices. Each look reads
// anew, so a device that came while the pods went is written down like the others.
func (d *decision) end() {
	if !d.Held {
		return
	}
	now := d.now
	if d.do(Record, func(i int, r Replica) bool { return r.Node != "" && !d.recorded(i, r.Node) }) {
		return
	}
	if d.Set {
		if !d.SetEnding {
			d.Step = Step{Deed: EndSet}
		}
		return
	}
	if d.do(Rest, func(_ int, r Replica) bool { return r.Pod != "" }) {
		return
	}
	if !d.SkipRemote {
		if d.remote(Tidy, func(_ int, r Replica) bool { return r.Key.Begun && r.Key.open(now) }) ||
			d.remote(DropKeys, func(_ int, r Replica) bool { return r.Key.AtHand && r.Key.open(now) }) {
			return
		}
		if d.Blocked { // a key dies by itself
			for _, r := range d.Facts.Ordinals {
				if r.Key.open(now) {
					d.wait(r.Key.Until)
				}
			}
			return
		}
	}
	if d.do(DropSecrets, func(_ int, r Replica) bool { return r.State || r.Config }) {
		return
	}
	if !d.SkipRemote && (d.dropDevices(func(Device) bool { return true }) || d.Blocked) {
		return
	}
	d.Step = Step{Deed: Release}
}
