package multicluster

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestOwners(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	o := NewOwnerCache()
	find := func(k ObjectKey, at time.Time, cluster string, absent bool) {
		t.Helper()
		if c, a := o.Get(k, at); c != cluster || a != absent {
			t.Errorf("found %q, absent %v; want %q, %v", c, a, cluster, absent)
		}
	}
	job := ObjectKey{"batch", "jobs", "n", "a"}
	find(job, now, "", false)
	o.Set(job, "east")
	find(job, now, "east", false)
	find(job, now.Add(time.Hour), "east", false) // only absence expires
	find(ObjectKey{"batch", "jobs", "na", ""}, now, "", false)
	find(ObjectKey{"batch", "jobs", "", "na"}, now, "", false)
	o.Delete(job, "west") // a late report of another cluster
	find(job, now, "east", false)
	o.Delete(job, "east")
	find(job, now, "", false)

	o.SetAbsent(job, now)
	find(job, now.Add(999*time.Millisecond), "", true)
	o.Set(job, "west") // it was created
	find(job, now, "west", false)
	o.SetAbsent(job, now)
	find(job, now.Add(time.Second), "", false)
	if o.Len() != 0 {
		t.Errorf("%d unused entries are kept", o.Len())
	}
	o.Delete(job, "")

	for i := range maxOwners + 10 {
		o.Set(ObjectKey{"", "pods", "n", fmt.Sprint(i)}, "east")
		o.Get(ObjectKey{"", "pods", "n", "0"}, now) // used continuously
	}
	if o.Len() > maxOwners {
		t.Errorf("%d entries, want at most %d", o.Len(), maxOwners)
	}
	find(ObjectKey{"", "pods", "n", "0"}, now, "east", false)
	find(ObjectKey{"", "pods", "n", "1"}, now, "", false)
}

// TestOwnerCacheGetAllocatesNothing checks that a lookup does not allocate memory.
func TestOwnerCacheGetAllocatesNothing(t *testing.T) {
	o := NewOwnerCache()
	k, now := ObjectKey{"batch", "jobs", "n", "a"}, time.Now()
	o.Set(k, "east")
	if n := testing.AllocsPerRun(100, func() { o.Get(k, now) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// AD-05, AD-07: the combined result of the members' answers.
func TestCombineAnswers(t *testing.T) {
	ok, gone, no, broken, silent := 200, 404, 403, 500, 0
	for _, tt := range []struct {
		answers [3]int
		prefer  bool
		owner   string
		status  int // of the refusal; 0: none
		absent  bool
	}{
		{[3]int{gone, ok, gone}, false, "west", 0, false},
		{[3]int{gone, gone, gone}, false, "", 0, true},
		{[3]int{gone, ok, ok}, false, "", 409, false},
		{[3]int{gone, ok, ok}, true, "west", 0, false},
		{[3]int{gone, silent, gone}, false, "", 503, false},
		{[3]int{gone, broken, gone}, false, "", 503, false},
		{[3]int{gone, 429, gone}, false, "", 503, false},
		{[3]int{gone, 401, gone}, false, "", 503, false},
		{[3]int{gone, 302, gone}, false, "", 503, false},
		{[3]int{silent, ok, gone}, false, "west", 0, false},
		{[3]int{silent, ok, gone}, true, "", 503, false}, // east may have the preferred copy
		{[3]int{gone, ok, silent}, true, "west", 0, false},
		{[3]int{silent, silent, silent}, false, "", 503, false},
		{[3]int{gone, no, gone}, false, "", 403, false},
		{[3]int{no, ok, gone}, false, "west", 0, false},
		{[3]int{no, silent, gone}, false, "", 503, false},
	} {
		var answers []ownerAnswer
		for i, name := range []string{"east", "west", "north"} {
			answers = append(answers, ownerAnswer{Cluster: name, Status: tt.answers[i]})
		}
		v := combineAnswers(answers, tt.prefer)
		status := 0
		if v.Refusal != nil {
			status = v.Refusal.Status
			if status == 503 && v.Refusal.RetryAfter == 0 {
				t.Errorf("%v: 503 without Retry-After", tt.answers)
			}
		}
		switch {
		case v.Owner != tt.owner:
			t.Errorf("v.Owner = %q, want %q", v.Owner, tt.owner)
		case status != tt.status:
			t.Errorf("status = %v, want %v", status, tt.status)
		case v.Absent != tt.absent:
			t.Errorf("v.Absent = %v, want %v", v.Absent, tt.absent)
		}
		if (v.Owner != "") && (v.Refusal != nil || v.Absent) || v.Owner == "" && v.Refusal == nil && !v.Absent {
			t.Errorf("%v: %+v has two results, or none", tt.answers, v)
		}
		if conflict := tt.prefer && tt.answers == [3]int{gone, ok, ok}; (v.Warning != "") != conflict {
			t.Errorf("%v: warning %q", tt.answers, v.Warning)
		}
	}
}

func BenchmarkOwnerCacheGet(b *testing.B) {
	o := NewOwnerCache()
	for i := range maxOwners {
		o.Set(ObjectKey{"batch", "jobs", "n", fmt.Sprint(i)}, "east")
	}
	k, now := ObjectKey{"batch", "jobs", "n", "25000"}, time.Now()
	b.ReportAllocs()
	for b.Loop() {
		if c, _ := o.Get(k, now); c != "east" {
			b.Fatal(c)
		}
	}
}

// Law: Get returns the last reported owner. Entries are dropped only when there are too many, and never one
// of the most recently used.
func TestOwnersAreBounded(t *testing.T) {
	const half, keys = 100, 500
	random := rand.New(rand.NewPCG(1, 2))
	now := time.Now()
	o := NewOwnerCache()
	o.half = half
	var order []int // the most recently used one is first
	has := map[int]string{}
	clusters := []string{"east", "west"}
	key := func(i int) ObjectKey { return ObjectKey{Resource: "pods", Name: fmt.Sprint(i)} }
	drop := func(i int) { order = slices.DeleteFunc(order, func(j int) bool { return i == j }) }
	use := func(i int) {
		drop(i)
		order = slices.Insert(order, 0, i)
	}
	dropped := 0
	for range 60_000 {
		i := random.IntN(keys)
		switch random.IntN(4) {
		case 0:
			o.Delete(key(i), clusters[0])
			if has[i] == clusters[0] {
				delete(has, i)
				drop(i)
			}
		case 1:
			cluster, absent := o.Get(key(i), now)
			switch {
			case absent:
				t.Fatalf("%d is absent", i)
			case cluster == has[i]:
			case cluster != "":
				t.Fatalf("%d is in %q, want %q", i, cluster, has[i])
			case slices.Index(order, i) < half:
				t.Fatalf("%d is dropped, and was used as number %d before", i, slices.Index(order, i))
			default:
				dropped++
				delete(has, i)
				drop(i)
			}
			if cluster != "" {
				use(i)
			}
		default:
			has[i] = clusters[random.IntN(2)]
			o.Set(key(i), has[i])
			use(i)
		}
		if o.Len() > 2*half {
			t.Fatalf("%d entries, want at most %d", o.Len(), 2*half)
		}
	}
	if dropped == 0 {
		t.Error("nothing was dropped: the bound was never reached")
	}
}
