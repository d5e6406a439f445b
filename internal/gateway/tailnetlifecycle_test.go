package gateway

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/kube/conditions"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
)

var tailnetTestTime = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// healthyTailnet returns the facts of a tailnet that is proved and checked and needs no action.
func healthyTailnet() TailnetFacts {
	return TailnetFacts{HasFinalizer: true, Generation: 1, Interval: 5 * time.Minute, Credential: "c1", NextCheck: tailnetTestTime.Add(time.Minute),
		Proof:    CredentialProof{Phase: gatewayv1alpha1.ValidationDone, Credential: "c1", Generation: 1, At: tailnetTestTime.Add(-time.Hour)},
		Previous: map[string]conditions.Condition{gatewayv1alpha1.ConditionReady: conditions.True("Ready", ""), gatewayv1alpha1.ConditionValidated: conditions.True("Ready", ""), gatewayv1alpha1.ConditionAuthenticated: conditions.True("TokenIssued", ""), gatewayv1alpha1.ConditionDegraded: conditions.False("AsExpected", "")}}
}

func TestNextTailnetAction(t *testing.T) {
	fail := func(c tsapi.Class, wait time.Duration) *APIFailure { return &APIFailure{Class: c, Wait: wait} }
	for _, x := range []struct {
		why    string
		change func(*TailnetFacts)
		want   TailnetAction
		wake   time.Duration // from noon; 0 means on change
	}{
		{"at rest", func(*TailnetFacts) {}, TailnetWait, time.Minute},
		{"time for a check", func(f *TailnetFacts) { f.NextCheck = tailnetTestTime }, TailnetCheck, 0},
		{"checked", func(f *TailnetFacts) { f.NextCheck, f.Checked = tailnetTestTime, &CheckResult{} }, TailnetWait, 5 * time.Minute},
		{"never checked", func(f *TailnetFacts) { f.NextCheck = time.Time{} }, TailnetCheck, 0},
		{"proved, and killed before the check", func(f *TailnetFacts) { f.Previous = nil }, TailnetCheck, 0},
		{"a far wake that a shorter interval brings nearer", func(f *TailnetFacts) { f.NextCheck = tailnetTestTime.Add(time.Hour) }, TailnetWait, 5 * time.Minute},
		{"new", func(f *TailnetFacts) { f.Proof, f.HasFinalizer = CredentialProof{}, false }, TailnetAddFinalizer, 0},
		{"new and held", func(f *TailnetFacts) { f.Proof = CredentialProof{} }, TailnetProveCredential, 0},
		{"another credential", func(f *TailnetFacts) { f.Credential = "c2" }, TailnetProveCredential, 0},
		{"another spec", func(f *TailnetFacts) { f.Generation = 2 }, TailnetProveCredential, 0},
		{"refused a moment ago", func(f *TailnetFacts) { f.Proof.Phase = gatewayv1alpha1.ValidationPending }, TailnetWait, time.Minute},
		{"refused a while ago", func(f *TailnetFacts) { f.Proof.Phase, f.NextCheck = gatewayv1alpha1.ValidationPending, tailnetTestTime }, TailnetProveCredential, 0},
		{"refused with another credential", func(f *TailnetFacts) { f.Proof.Phase, f.Credential = gatewayv1alpha1.ValidationPending, "c2" }, TailnetProveCredential, 0},
		{"killed after the start was recorded", func(f *TailnetFacts) {
			f.Proof.Phase, f.Proof.At = gatewayv1alpha1.ValidationInProgress, tailnetTestTime
		}, TailnetDeleteKey, 0},
		{"killed before the key was deleted", func(f *TailnetFacts) {
			f.Proof.Phase, f.Proof.At = gatewayv1alpha1.ValidationCleanupPending, tailnetTestTime
		}, TailnetDeleteKey, 0},
		{"and the credential has changed", func(f *TailnetFacts) {
			f.Proof.Phase, f.Proof.At, f.Credential = gatewayv1alpha1.ValidationCleanupPending, tailnetTestTime, "c2"
		}, TailnetDeleteKey, 0},
		{"the key could not be deleted", func(f *TailnetFacts) {
			f.Proof.Phase, f.Proof.At, f.Failure = gatewayv1alpha1.ValidationCleanupPending, tailnetTestTime, fail(tsapi.Unavailable, 2*time.Second)
		}, TailnetWait, 2 * time.Second},
		{"the key is expired", func(f *TailnetFacts) {
			f.Proof.Phase, f.Proof.At = gatewayv1alpha1.ValidationCleanupPending, tailnetTestTime.Add(-ValidationKeyLifetime)
		}, TailnetForgetKey, 0},
		{"refused", func(f *TailnetFacts) { f.Failure = fail(tsapi.Refused, 0) }, TailnetWait, 5 * time.Minute},
		{"unknown tailnet", func(f *TailnetFacts) { f.Failure = fail(tsapi.NotFound, time.Second) }, TailnetWait, 5 * time.Minute},
		{"the circuit is open", func(f *TailnetFacts) { f.Failure = fail(tsapi.CircuitOpen, 7*time.Second) }, TailnetWait, 7 * time.Second},
		{"no credential", func(f *TailnetFacts) {
			f.Credential, f.Proof.Phase, f.Proof.At = "", gatewayv1alpha1.ValidationCleanupPending, tailnetTestTime
		}, TailnetWait, 0},
		{"no credential, but users", func(f *TailnetFacts) { f.Credential, f.HasFinalizer, f.Users = "", false, []string{"a"} }, TailnetAddFinalizer, 0},
		{"deleting, without finalizer", func(f *TailnetFacts) { f.Deleting, f.HasFinalizer = true, false }, TailnetWait, 0},
		{"deleting, new and without finalizer", func(f *TailnetFacts) { f.Deleting, f.HasFinalizer, f.Proof = true, false, CredentialProof{} }, TailnetWait, 0},
		{"deleting", func(f *TailnetFacts) { f.Deleting = true }, TailnetRemoveFinalizer, 0},
		{"deleting, used", func(f *TailnetFacts) { f.Deleting, f.Users = true, []string{"a"} }, TailnetWait, 0},
		{"deleting, with a key", func(f *TailnetFacts) {
			f.Deleting, f.Proof.Phase, f.Proof.At = true, gatewayv1alpha1.ValidationInProgress, tailnetTestTime
		}, TailnetDeleteKey, 0},
		{"deleting, and the key cannot be deleted", func(f *TailnetFacts) {
			f.Deleting, f.Proof.Phase, f.Proof.At, f.Credential = true, gatewayv1alpha1.ValidationCleanupPending, tailnetTestTime.Add(-time.Minute), ""
		}, TailnetWait, 4 * time.Minute},
		{"deleting, and the API is unavailable", func(f *TailnetFacts) {
			f.Deleting, f.Proof.Phase, f.Proof.At, f.Failure = true, gatewayv1alpha1.ValidationCleanupPending, tailnetTestTime.Add(-time.Minute), fail(tsapi.Refused, 0)
		}, TailnetWait, 4 * time.Minute},
		{"an administrator skips the cleanup", func(f *TailnetFacts) {
			f.Deleting, f.Proof.Phase, f.Proof.At, f.SkipRemote = true, gatewayv1alpha1.ValidationCleanupPending, tailnetTestTime, true
		}, TailnetRemoveFinalizer, 0},
		{"the key expired in the meantime", func(f *TailnetFacts) {
			f.Deleting, f.Proof.Phase, f.Proof.At = true, gatewayv1alpha1.ValidationCleanupPending, tailnetTestTime.Add(-ValidationKeyLifetime)
		}, TailnetRemoveFinalizer, 0},
	} {
		f := healthyTailnet()
		x.change(&f)
		action, wake := NextTailnetAction(f, tailnetTestTime)
		want := time.Time{}
		if x.wake > 0 {
			want = tailnetTestTime.Add(x.wake)
		}
		if action != x.want || !wake.Equal(want) {
			t.Errorf("%s: %s until %v, want %s until %v", x.why, action, wake, x.want, want)
		}
	}
}

// GTW-06: the conditions of each outcome, for a new tailnet and for one that was healthy.
func TestTailnetConditions(t *testing.T) {
	for _, x := range []struct {
		why    string
		change func(*TailnetFacts)
		fresh  string // Authenticated, Validated, Ready, Degraded
		known  string // the same for one that was healthy; "" means equal
	}{
		{"nothing yet", func(*TailnetFacts) {}, "Unknown/APIUnavailable Unknown/Pending False/Pending False/AsExpected", "True/TokenIssued True/Ready True/Ready False/AsExpected"},
		{"no Secret", func(f *TailnetFacts) {
			f.Credential, f.CredentialProblem = "", conditions.False("SecretNotFound", "gone")
		}, "False/SecretNotFound Unknown/Pending False/Failed False/AsExpected", ""},
		{"refused", func(f *TailnetFacts) { f.Failure = &APIFailure{Class: tsapi.Refused} }, "False/InvalidCredentials Unknown/Pending False/Failed False/AsExpected", ""},
		{"no token", func(f *TailnetFacts) { f.Failure = &APIFailure{Class: tsapi.NoToken} }, "False/TokenExchangeFailed Unknown/Pending False/Failed False/AsExpected", ""},
		{"no scope", func(f *TailnetFacts) { f.Failure = &APIFailure{Class: tsapi.Forbidden} }, "True/TokenIssued False/InsufficientPermissions False/Failed False/AsExpected", ""},
		{"tags", func(f *TailnetFacts) { f.Failure = &APIFailure{Class: tsapi.Invalid, CreateKey: true} }, "True/TokenIssued False/TagsNotPermitted False/Failed False/AsExpected", ""},
		{"no tailnet", func(f *TailnetFacts) { f.Failure = &APIFailure{Class: tsapi.NotFound} }, "True/TokenIssued False/TailnetNotFound False/Failed False/AsExpected", ""},
		{"a refused list", func(f *TailnetFacts) { f.Failure = &APIFailure{Class: tsapi.Invalid} }, "Unknown/APIUnavailable Unknown/APIUnavailable False/Pending True/APIUnavailable", "True/TokenIssued True/Ready True/Ready True/APIUnavailable"},
		{"away", func(f *TailnetFacts) { f.Failure = &APIFailure{Class: tsapi.Unavailable} }, "Unknown/APIUnavailable Unknown/APIUnavailable False/Pending True/APIUnavailable", "True/TokenIssued True/Ready True/Ready True/APIUnavailable"},
		{"a pause", func(f *TailnetFacts) { f.Failure = &APIFailure{Class: tsapi.RateLimited} }, "Unknown/APIUnavailable Unknown/RateLimited False/Pending True/RateLimited", "True/TokenIssued True/Ready True/Ready True/RateLimited"},
		{"the circuit", func(f *TailnetFacts) { f.Failure = &APIFailure{Class: tsapi.CircuitOpen} }, "Unknown/APIUnavailable Unknown/APIUnavailable False/Pending True/CircuitOpen", "True/TokenIssued True/Ready True/Ready True/CircuitOpen"},
		{"an unknown class", func(f *TailnetFacts) { f.Failure = &APIFailure{Class: "Strange"} }, "Unknown/APIUnavailable Unknown/APIUnavailable False/Pending True/APIUnavailable", "True/TokenIssued True/Ready True/Ready True/APIUnavailable"},
		{"good", func(f *TailnetFacts) { f.Checked = &CheckResult{Names: []string{"a.tail1.ts.net"}} }, "True/TokenIssued True/Ready True/Ready False/AsExpected", ""},
		{"no devices", func(f *TailnetFacts) { f.Checked = &CheckResult{Devices: 1} }, "True/TokenIssued True/NoDevices True/Ready False/AsExpected", ""},
		{"no services", func(f *TailnetFacts) { f.Checked = &CheckResult{Names: []string{"a.b"}, ServicesRefused: "no"} }, "True/TokenIssued True/Ready True/Ready True/PartialScopes", ""},
		{"deleting, used", func(f *TailnetFacts) { f.Deleting, f.Users = true, []string{"b", "a"} }, "Unknown/APIUnavailable Unknown/Pending False/Pending False/AsExpected", "True/TokenIssued True/Ready False/Pending False/AsExpected"},
	} {
		for name, was := range map[string]map[string]conditions.Condition{"fresh": nil, "known": healthyTailnet().Previous} {
			f := healthyTailnet()
			f.Previous = was
			x.change(&f)
			v := TailnetConditions(f)
			var got []string
			for _, kind := range []string{gatewayv1alpha1.ConditionAuthenticated, gatewayv1alpha1.ConditionValidated, gatewayv1alpha1.ConditionReady, gatewayv1alpha1.ConditionDegraded} {
				got = append(got, string(v[kind].Status)+"/"+v[kind].Reason)
			}
			want := x.fresh
			if name == "known" && x.known != "" {
				want = x.known
			}
			if s := strings.Join(got, " "); s != want {
				t.Errorf("%s, %s: %s, want %s", x.why, name, s, want)
			}
			// The contract of the columns: only these three words.
			if r := v[gatewayv1alpha1.ConditionReady]; !slices.Contains([]string{"Ready", "Pending", "Failed"}, r.Reason) || r.IsTrue() != (r.Reason == "Ready") {
				t.Errorf("%s, %s: Ready is %+v", x.why, name, r)
			}
			if x.why == "deleting, used" && !strings.Contains(v[gatewayv1alpha1.ConditionReady].Message, "a, b") {
				t.Errorf("the users are not named: %q", v[gatewayv1alpha1.ConditionReady].Message)
			}
		}
	}
}

// GTW-07, GTW-08: with any failure and any crash, no proof begins while a key of an earlier one
// may be valid. After all failures end, there is one proof for each credential and spec.
func TestTailnetLifecycle(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 3))
		now := tailnetTestTime
		f := TailnetFacts{Generation: 1, Credential: "c1", Interval: 5 * time.Minute, Previous: map[string]conditions.Condition{}}
		alive := map[string]time.Time{} // expiry of the keys
		id, proofs := 0, 0
		storm := true
		reconcile := func() {
			f.Failure, f.Checked = nil, nil
			for range 12 {
				action, wake := NextTailnetAction(f, now)
				if action == TailnetWait {
					v := TailnetConditions(f)
					f.Previous = v
					if f.Failure != nil || f.Checked != nil {
						f.NextCheck = wake
					}
					return
				}
				killed, fails := storm && r.IntN(4) == 0, storm && r.IntN(3) == 0
				classes := []tsapi.Class{tsapi.Refused, tsapi.Forbidden, tsapi.RateLimited, tsapi.Unavailable, tsapi.CircuitOpen}
				failure := &APIFailure{Class: classes[r.IntN(len(classes))], Wait: time.Second}
				switch action {
				case TailnetAddFinalizer:
					f.HasFinalizer = true
				case TailnetProveCredential:
					for key, until := range alive {
						if now.Before(until) {
							t.Fatalf("seed %d: a proof is begun while %s is alive", seed, key)
						}
					}
					proofs++
					f.Proof = CredentialProof{Phase: gatewayv1alpha1.ValidationInProgress, Credential: f.Credential, Generation: f.Generation, At: now}
					if killed && r.IntN(2) == 0 {
						return
					}
					if fails && failure.Class != tsapi.Unavailable {
						f.Proof.Phase, f.Failure = gatewayv1alpha1.ValidationPending, failure
						continue
					}
					id++
					key := strings.Repeat("k", id)
					alive[key] = now.Add(ValidationKeyLifetime)
					if fails { // the answer is lost
						f.Failure = failure
						continue
					}
					if killed && r.IntN(2) == 0 {
						return
					}
					f.Proof.Phase, f.Proof.KeyID = gatewayv1alpha1.ValidationCleanupPending, key
					if killed {
						return
					}
					delete(alive, key)
					f.Proof.Phase = gatewayv1alpha1.ValidationDone
				case TailnetDeleteKey:
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
						f.Proof.Phase = gatewayv1alpha1.ValidationDone
					} else {
						f.Proof = CredentialProof{Phase: gatewayv1alpha1.ValidationPending}
					}
				case TailnetForgetKey:
					f.Proof = CredentialProof{Phase: gatewayv1alpha1.ValidationPending}
				case TailnetCheck:
					if fails {
						f.Failure = failure
					} else {
						f.Checked = &CheckResult{Names: []string{"a.b"}}
					}
				default:
					t.Fatalf("seed %d: %s", seed, action)
				}
			}
			t.Fatalf("seed %d: no stable state", seed)
		}
		for range 30 {
			reconcile()
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
			reconcile()
		}
		switch {
		case f.Proof.Phase != gatewayv1alpha1.ValidationDone:
			t.Fatalf("seed: f.Proof.Phase = %q, want %q; seed = %d", f.Proof.Phase, gatewayv1alpha1.ValidationDone, seed)
		case f.Proof.Credential != f.Credential:
			t.Fatalf("seed: f.Proof.Credential = %q, want %q; seed = %d", f.Proof.Credential, f.Credential, seed)
		case !f.Previous[gatewayv1alpha1.ConditionReady].IsTrue():
			t.Fatalf("seed: f.Previous[gatewayv1alpha1.ConditionReady].IsTrue() is false; seed = %d, %+v", seed, f)
		case f.Previous[gatewayv1alpha1.ConditionDegraded].Status != "False":
			t.Fatalf("seed: got %q, want %q; seed = %d", f.Previous[gatewayv1alpha1.ConditionDegraded].Status, "False", seed)
		}
		for key, until := range alive {
			if now.Before(until) {
				t.Fatalf("seed %d: %s is left", seed, key)
			}
		}
		before := proofs
		for range 10 {
			reconcile()
			now = now.Add(time.Minute)
		}
		if proofs != before {
			t.Fatalf("seed %d: proved again", seed)
		}
	}
}

// GTW-12: the domain of a tailnet.
func TestTailnetDomain(t *testing.T) {
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
		if got := TailnetDomain(strings.Fields(x.names)); got != x.want {
			t.Errorf("%q: %q, want %q", x.names, got, x.want)
		}
	}
	for domain, want := range map[string]string{"tail8eff9.ts.net": "Personal", "tail.ts.net": "Organization", "tailxyz.ts.net": "Organization", "cat-dog.ts.net": "Organization", "example.com": "Organization"} {
		if got := TailnetOrganization(domain); got != want {
			t.Errorf("%q: %q, want %q", domain, got, want)
		}
	}
}

func TestJoinSome(t *testing.T) {
	if got := joinSome(strings.Fields("g f e d c b a")); got != "a, b, c, d, e and 2 more" {
		t.Error(got)
	}
}
