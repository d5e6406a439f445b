package standing

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// good returns the facts of a tailnet that is proved and checked and needs no action.
func good() Facts {
	return Facts{Held: true, Generation: 1, Interval: 5 * time.Minute, Credential: "c1", Next: noon.Add(time.Minute),
		Proof: Proof{Phase: Done, Credential: "c1", Generation: 1, At: noon.Add(-time.Hour)},
		Was:   map[string]Verdict{ready: {yes, "Ready", ""}, validated: {yes, "Ready", ""}, authenticated: {yes, "TokenIssued", ""}, degraded: {no, "AsExpected", ""}}}
}

func TestNext(t *testing.T) {
	fail := func(c Class, wait time.Duration) *Failure { return &Failure{Class: c, Wait: wait} }
	for _, x := range []struct {
		why    string
		change func(*Facts)
		want   Deed
		wake   time.Duration // from noon; 0 means on change
	}{
		{"at rest", func(*Facts) {}, Rest, time.Minute},
		{"time for a check", func(f *Facts) { f.Next = noon }, Check, 0},
		{"checked", func(f *Facts) { f.Next, f.Answer = noon, &Answer{} }, Rest, 5 * time.Minute},
		{"never checked", func(f *Facts) { f.Next = time.Time{} }, Check, 0},
		{"proved, and killed before the check", func(f *Facts) { f.Was = nil }, Check, 0},
		{"a far wake that a shorter interval brings nearer", func(f *Facts) { f.Next = noon.Add(time.Hour) }, Rest, 5 * time.Minute},
		{"new", func(f *Facts) { f.Proof, f.Held = Proof{}, false }, Hold, 0},
		{"new and held", func(f *Facts) { f.Proof = Proof{} }, Prove, 0},
		{"another credential", func(f *Facts) { f.Credential = "c2" }, Prove, 0},
		{"another spec", func(f *Facts) { f.Generation = 2 }, Prove, 0},
		{"refused a moment ago", func(f *Facts) { f.Proof.Phase = Pending }, Rest, time.Minute},
		{"refused a while ago", func(f *Facts) { f.Proof.Phase, f.Next = Pending, noon }, Prove, 0},
		{"refused with another credential", func(f *Facts) { f.Proof.Phase, f.Credential = Pending, "c2" }, Prove, 0},
		{"killed after it was begun", func(f *Facts) { f.Proof.Phase, f.Proof.At = Begun, noon }, Tidy, 0},
		{"killed before the key was deleted", func(f *Facts) { f.Proof.Phase, f.Proof.At = ToTidy, noon }, Tidy, 0},
		{"and the credential is another one now", func(f *Facts) { f.Proof.Phase, f.Proof.At, f.Credential = ToTidy, noon, "c2" }, Tidy, 0},
		{"the key could not be deleted", func(f *Facts) {
			f.Proof.Phase, f.Proof.At, f.Failure = ToTidy, noon, fail(Unavailable, 2*time.Second)
		}, Rest, 2 * time.Second},
		{"the key is dead", func(f *Facts) { f.Proof.Phase, f.Proof.At = ToTidy, noon.Add(-KeyLife) }, Forget, 0},
		{"refused", func(f *Facts) { f.Failure = fail(Refused, 0) }, Rest, 5 * time.Minute},
		{"no such tailnet", func(f *Facts) { f.Failure = fail(NotFound, time.Second) }, Rest, 5 * time.Minute},
		{"the circuit is open", func(f *Facts) { f.Failure = fail(CircuitOpen, 7*time.Second) }, Rest, 7 * time.Second},
		{"no credential", func(f *Facts) { f.Credential, f.Proof.Phase, f.Proof.At = "", ToTidy, noon }, Rest, 0},
		{"no credential, but users", func(f *Facts) { f.Credential, f.Held, f.Users = "", false, []string{"a"} }, Hold, 0},
		{"deleting, never held", func(f *Facts) { f.Deleting, f.Held = true, false }, Rest, 0},
		{"deleting, new and never held", func(f *Facts) { f.Deleting, f.Held, f.Proof = true, false, Proof{} }, Rest, 0},
		{"deleting", func(f *Facts) { f.Deleting = true }, Release, 0},
		{"deleting, used", func(f *Facts) { f.Deleting, f.Users = true, []string{"a"} }, Rest, 0},
		{"deleting, with a key", func(f *Facts) { f.Deleting, f.Proof.Phase, f.Proof.At = true, Begun, noon }, Tidy, 0},
		{"deleting, and nobody can delete the key", func(f *Facts) {
			f.Deleting, f.Proof.Phase, f.Proof.At, f.Credential = true, ToTidy, noon.Add(-time.Minute), ""
		}, Rest, 4 * time.Minute},
		{"deleting, and the API is away", func(f *Facts) {
			f.Deleting, f.Proof.Phase, f.Proof.At, f.Failure = true, ToTidy, noon.Add(-time.Minute), fail(Refused, 0)
		}, Rest, 4 * time.Minute},
		{"an administrator lets it go", func(f *Facts) {
			f.Deleting, f.Proof.Phase, f.Proof.At, f.SkipRemote = true, ToTidy, noon, true
		}, Release, 0},
		{"the key died meanwhile", func(f *Facts) { f.Deleting, f.Proof.Phase, f.Proof.At = true, ToTidy, noon.Add(-KeyLife) }, Release, 0},
	} {
		f := good()
		x.change(&f)
		deed, wake := Next(f, noon)
		want := time.Time{}
		if x.wake > 0 {
			want = noon.Add(x.wake)
		}
		if deed != x.want || !wake.Equal(want) {
			t.Errorf("%s: %s until %v, want %s until %v", x.why, deed, wake, x.want, want)
		}
	}
}

// GTW-06: the conditions of each outcome, for a new tailnet and for one that was healthy.
func TestVerdicts(t *testing.T) {
	for _, x := range []struct {
		why    string
		change func(*Facts)
		fresh  string // Authenticated, Validated, Ready, Degraded
		known  string // the same for one that was healthy; "" means equal
	}{
		{"nothing yet", func(*Facts) {}, "Unknown/APIUnavailable Unknown/Pending False/Pending False/AsExpected", "True/TokenIssued True/Ready True/Ready False/AsExpected"},
		{"no Secret", func(f *Facts) { f.Credential, f.Trouble = "", Verdict{no, "SecretNotFound", "gone"} }, "False/SecretNotFound Unknown/Pending False/Failed False/AsExpected", ""},
		{"refused", func(f *Facts) { f.Failure = &Failure{Class: Refused} }, "False/InvalidCredentials Unknown/Pending False/Failed False/AsExpected", ""},
		{"no token", func(f *Facts) { f.Failure = &Failure{Class: NoToken, AtToken: true} }, "False/TokenExchangeFailed Unknown/Pending False/Failed False/AsExpected", ""},
		{"no scope", func(f *Facts) { f.Failure = &Failure{Class: Forbidden} }, "True/TokenIssued False/InsufficientPermissions False/Failed False/AsExpected", ""},
		{"tags", func(f *Facts) { f.Failure = &Failure{Class: Invalid, MakeKey: true} }, "True/TokenIssued False/TagsNotPermitted False/Failed False/AsExpected", ""},
		{"no tailnet", func(f *Facts) { f.Failure = &Failure{Class: NotFound} }, "True/TokenIssued False/TailnetNotFound False/Failed False/AsExpected", ""},
		{"a list that is refused as such", func(f *Facts) { f.Failure = &Failure{Class: Invalid} }, "Unknown/APIUnavailable Unknown/APIUnavailable False/Pending True/APIUnavailable", "True/TokenIssued True/Ready True/Ready True/APIUnavailable"},
		{"away", func(f *Facts) { f.Failure = &Failure{Class: Unavailable} }, "Unknown/APIUnavailable Unknown/APIUnavailable False/Pending True/APIUnavailable", "True/TokenIssued True/Ready True/Ready True/APIUnavailable"},
		{"a pause", func(f *Facts) { f.Failure = &Failure{Class: RateLimited} }, "Unknown/APIUnavailable Unknown/RateLimited False/Pending True/RateLimited", "True/TokenIssued True/Ready True/Ready True/RateLimited"},
		{"the circuit", func(f *Facts) { f.Failure = &Failure{Class: CircuitOpen} }, "Unknown/APIUnavailable Unknown/APIUnavailable False/Pending True/CircuitOpen", "True/TokenIssued True/Ready True/Ready True/CircuitOpen"},
		{"a class that is new to us", func(f *Facts) { f.Failure = &Failure{Class: "Strange"} }, "Unknown/APIUnavailable Unknown/APIUnavailable False/Pending True/APIUnavailable", "True/TokenIssued True/Ready True/Ready True/APIUnavailable"},
		{"good", func(f *Facts) { f.Answer = &Answer{Names: []string{"a.tail1.ts.net"}} }, "True/TokenIssued True/Ready True/Ready False/AsExpected", ""},
		{"no devices", func(f *Facts) { f.Answer = &Answer{Devices: 1} }, "True/TokenIssued True/NoDevices True/Ready False/AsExpected", ""},
		{"no services", func(f *Facts) { f.Answer = &Answer{Names: []string{"a.b"}, ServicesRefused: "no"} }, "True/TokenIssued True/Ready True/Ready True/PartialScopes", ""},
		{"deleting, used", func(f *Facts) { f.Deleting, f.Users = true, []string{"b", "a"} }, "Unknown/APIUnavailable Unknown/Pending False/Pending False/AsExpected", "True/TokenIssued True/Ready False/Pending False/AsExpected"},
	} {
		for name, was := range map[string]map[string]Verdict{"fresh": nil, "known": good().Was} {
			f := good()
			f.Was = was
			x.change(&f)
			v := Verdicts(f)
			var got []string
			for _, kind := range []string{authenticated, validated, ready, degraded} {
				got = append(got, v[kind].Status+"/"+v[kind].Reason)
			}
			want := x.fresh
			if name == "known" && x.known != "" {
				want = x.known
			}
			if s := strings.Join(got, " "); s != want {
				t.Errorf("%s, %s: %s, want %s", x.why, name, s, want)
			}
			// The contract of the columns: only these three words.
			if r := v[ready]; !slices.Contains([]string{"Ready", "Pending", "Failed"}, r.Reason) || (r.Status == yes) != (r.Reason == "Ready") {
				t.Errorf("%s, %s: Ready is %+v", x.why, name, r)
			}
			if x.why == "deleting, used" && !strings.Contains(v[ready].Message, "a, b") {
				t.Errorf("the users are not named: %q", v[ready].Message)
			}
		}
	}
}

// GTW-07, GTW-08: with any failure and any crash, no proof begins while a key of an earlier one
// may be valid. After all failures end, there is one proof for each credential and spec.
func TestWalk(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 3))
		now := noon
		f := Facts{Generation: 1, Credential: "c1", Interval: 5 * time.Minute, Was: map[string]Verdict{}}
		alive := map[string]time.Time{} // expiry of the keys
		id, proofs := 0, 0
		storm := true
		look := func() {
			f.Failure, f.Answer = nil, nil
			for range 12 {
				deed, wake := Next(f, now)
				if deed == Rest {
					v := Verdicts(f)
					f.Was = v
					if f.Failure != nil || f.Answer != nil {
						f.Next = wake
					}
					return
				}
				killed, fails := storm && r.IntN(4) == 0, storm && r.IntN(3) == 0
				classes := []Class{Refused, Forbidden, RateLimited, Unavailable, CircuitOpen}
				failure := &Failure{Class: classes[r.IntN(len(classes))], Wait: time.Second}
				switch deed {
				case Hold:
					f.Held = true
				case Prove:
					for key, until := range alive {
						if now.Before(until) {
							t.Fatalf("seed %d: a proof is begun while %s is alive", seed, key)
						}
					}
					proofs++
					f.Proof = Proof{Phase: Begun, Credential: f.Credential, Generation: f.Generation, At: now}
					if killed && r.IntN(2) == 0 {
						return
					}
					if fails && failure.Class != Unavailable {
						f.Proof.Phase, f.Failure = Pending, failure
						continue
					}
					id++
					key := strings.Repeat("k", id)
					alive[key] = now.Add(KeyLife)
					if fails { // the answer is lost
						f.Failure = failure
						continue
					}
					if killed && r.IntN(2) == 0 {
						return
					}
					f.Proof.Phase, f.Proof.KeyID = ToTidy, key
					if killed {
						return
					}
					delete(alive, key)
					f.Proof.Phase = Done
				case Tidy:
					if fails {
						f.Failure = failure
						continue
					}
					found := ""
					for key := range alive {
						found = key
					}
					clear(alive)
					if killed {
						return
					}
					if found != "" && f.Proof.Credential == f.Credential && f.Proof.Generation == f.Generation {
						f.Proof.Phase = Done
					} else {
						f.Proof = Proof{Phase: Pending}
					}
				case Forget:
					f.Proof = Proof{Phase: Pending}
				case Check:
					if fails {
						f.Failure = failure
					} else {
						f.Answer = &Answer{Names: []string{"a.b"}}
					}
				default:
					t.Fatalf("seed %d: %s", seed, deed)
				}
			}
			t.Fatalf("seed %d: no rest", seed)
		}
		for range 30 {
			look()
			now = now.Add(time.Duration(r.IntN(400)) * time.Second)
			switch r.IntN(10) {
			case 0:
				f.Credential += "x"
			case 1:
				f.Generation++
			}
		}
		storm = false
		for range 5 {
			now = now.Add(6 * time.Minute)
			look()
		}
		if f.Proof.Phase != Done || f.Proof.Credential != f.Credential || f.Was[ready].Status != yes || f.Was[degraded].Status != no {
			t.Fatalf("seed %d: %+v", seed, f)
		}
		for key, until := range alive {
			if now.Before(until) {
				t.Fatalf("seed %d: %s is left", seed, key)
			}
		}
		before := proofs
		for range 10 {
			look()
			now = now.Add(time.Minute)
		}
		if proofs != before {
			t.Fatalf("seed %d: proved again", seed)
		}
	}
}

// GTW-12: the domain of a tailnet.
func TestDomain(t *testing.T) {
	for _, x := range []struct{ names, want string }{
		{"", ""},
		{"host.tail8eff9.ts.net", "tail8eff9.ts.net"},
		{"a.tail1.ts.net. b.tail2.ts.net c.tail2.ts.net", "tail2.ts.net"},
		{"a.z.example b.y.example", "y.example"},
		{"host", ""},
		{"a.b\x1b[31m a..b a.-x", ""},
		{"a." + strings.Repeat("x", 64), ""},
		{"a." + strings.Repeat("x.", 130) + "y", ""},
	} {
		if got := Domain(strings.Fields(x.names)); got != x.want {
			t.Errorf("%q: %q, want %q", x.names, got, x.want)
		}
	}
	for domain, want := range map[string]string{"tail8eff9.ts.net": "Personal", "tail.ts.net": "Organization", "tailxyz.ts.net": "Organization", "cat-dog.ts.net": "Organization", "example.com": "Organization"} {
		if got := Organization(domain); got != want {
			t.Errorf("%q: %q, want %q", domain, got, want)
		}
	}
}

func TestSome(t *testing.T) {
	if got := some(strings.Fields("g f e d c b a")); got != "a, b, c, d, e and 2 more" {
		t.Error(got)
	}
}
