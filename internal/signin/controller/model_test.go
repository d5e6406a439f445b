//go:build unix

package controller

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

var (
	modelSeed = flag.Uint64("model.seed", 0, "the seed that TestModel replays; 0: new seeds")
	modelTime = flag.Duration("model.time", 40*time.Second, "how long TestModel runs before it ends the simulated sign-ins")
)

// A rights is a role and the places where it holds. The zero value is no access.
type rights struct{ role, places string }

// A person is a user on a device, with the states that the model considers possible.
type person struct {
	owner  signin.Owner
	grants []json.RawMessage // guarded by mu of the environment
	role   string            // of the grants; "" without a grant
	places []string

	possible map[rights]bool // possible current sign-ins
	previous map[rights]bool // possible sign-ins since the last rest, which may still be in removal
	from, by time.Time       // earliest and latest possible end
	mayEnd   bool            // an event happened that may end the sign-in at any time
	tampered bool
}

func (x *person) only(w rights) {
	maps.Copy(x.previous, x.possible)
	x.possible = map[rights]bool{w: true}
}

// covers reports whether the current grant covers the sign-in.
func (x *person) covers(w rights) bool {
	if w.role != x.role {
		return false
	}
	if len(x.places) == 0 {
		return true
	}
	return w.places != "" && !slices.ContainsFunc(strings.Split(w.places, ","), func(p string) bool { return !slices.Contains(x.places, p) })
}

// A modelRun is one environment during a run of the model.
type modelRun struct {
	*modelEnv
	trouble bool // a storm or a crash happened since the last rest
	skewed  bool // a clock was wrong since the last rest
	log     []string
}

// SGN-08, SGN-09, SGN-15, SGN-17: People, administrators, crashes, clocks and the API server act in
// any order. The laws of a sign-in hold at all times, and after the system has settled, everything
// is as the model predicts. Use -model.seed=N to repeat a run and -model.time=1h for a longer one.
func TestModel(t *testing.T) {
	if *modelSeed != 0 {
		runModel(t, *modelSeed, time.Now().Add(time.Hour))
		return
	}
	until := time.Now().Add(*modelTime)
	for lane := range 4 { // runs that affect each other only by load
		t.Run(fmt.Sprint("lane ", lane), func(t *testing.T) {
			t.Parallel()
			for ok := true; ok && time.Now().Before(until); {
				seed := rand.Uint64()>>1 + 1
				ok = t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { runModel(t, seed, until) })
			}
		})
	}
}

func runModel(t *testing.T, seed uint64, until time.Time) {
	l := &modelRun{modelEnv: newModelEnv(t, seed)}
	defer func() {
		if t.Failed() {
			t.Logf("what happened:\n%s", strings.Join(l.log, "\n"))
			t.Logf("again: go test ./internal/signin/controller -run TestModel -model.seed=%d", seed)
		}
	}()
	for range 3 {
		for range 24 {
			if l.step(); t.Failed() || time.Now().After(until) {
				break
			}
		}
		if !t.Failed() {
			l.settle()
		}
		if t.Failed() {
			return
		}
		if time.Now().After(until) {
			break
		}
	}
	l.endAll()
}

func (l *modelRun) logf(format string, args ...any) {
	l.log = append(l.log, fmt.Sprintf("%7.3fs ", time.Since(l.history.begun).Seconds())+fmt.Sprintf(format, args...))
}

func (l *modelRun) failf(format string, args ...any) {
	l.t.Helper()
	l.logf("BROKEN: "+format, args...)
	l.t.Errorf(format, args...)
}

// step performs one random action.
func (l *modelRun) step() {
	x := l.people[l.rand.IntN(len(l.people))]
	switch n := l.rand.IntN(100); {
	case n < 24:
		l.login(x, l.randomRequest(x))
	case n < 30:
		l.race(x)
	case n < 52:
		l.kubeconfig(x, "?wait=3s")
	case n < 57:
		l.read(x)
	case n < 63:
		l.logout(x)
	case n < 66:
		l.erase(x)
	case n < 75:
		l.changeGrants(x)
	case n < 80:
		l.tamper(x)
	case n < 84:
		l.leap([]time.Duration{time.Second, 59 * time.Second, 11 * time.Minute, 31 * time.Minute, 3 * time.Hour}[l.rand.IntN(5)])
	case n < 87:
		l.skew()
	case n < 92:
		l.storm()
	default:
		l.crash()
	}
}

func (l *modelRun) randomRequest(x *person) signin.LoginRequest {
	req := signin.LoginRequest{Role: x.role}
	if l.rand.IntN(2) == 0 {
		_ = req.Period.UnmarshalText([]byte([]string{"3s", "20m", "1h"}[l.rand.IntN(3)]))
	}
	if l.rand.IntN(3) == 0 {
		req.Namespaces = []string{"default"}
	}
	return req
}

// asked returns the result that a request for a sign-in may have.
func (x *person) asked(req signin.LoginRequest) rights {
	if len(req.Namespaces) > 0 {
		return rights{req.Role, strings.Join(req.Namespaces, ",")}
	}
	return rights{x.role, strings.Join(x.places, ",")}
}

// written tells the model that a login may have been executed, or was executed.
func (l *modelRun) written(x *person, req signin.LoginRequest, began time.Time, surely bool) {
	period := time.Duration(req.Period)
	if period == 0 || period > 2*time.Hour {
		period = 2 * time.Hour
	}
	from, by := began.Add(period).Add(-time.Second), l.clock(l.access).Add(period)
	if surely {
		x.only(x.asked(req))
		x.from, x.by = from, by
		return
	}
	x.possible[x.asked(req)] = true
	x.possible[rights{}] = true // the old sign-in may be gone already
	if x.from.IsZero() || from.Before(x.from) {
		x.from = from
	}
	if by.After(x.by) {
		x.by = by
	}
}

func (l *modelRun) login(x *person, req signin.LoginRequest) {
	began := l.clock(l.access)
	r := l.request(x, signin.Login.Declare(), "", req)
	l.logf("%s on %s: login %+v: %v", x.owner.Login, x.owner.DeviceName, req, r)
	l.loginReplied(x, req, began, r)
}

func (l *modelRun) loginReplied(x *person, req signin.LoginRequest, began time.Time, r reply) {
	switch {
	case !r.receivedAt:
		l.written(x, req, began, false)
	case r.status == http.StatusAccepted:
		if x.role == "" {
			l.failf("let in without a grant")
		}
		l.written(x, req, began, true)
	case r.code == problem.Ending, r.code == problem.Unavailable && l.trouble, r.code == problem.Conflict && l.trouble:
		l.written(x, req, began, false)
	case r.code == problem.NoCapability && x.role == "":
	default:
		l.failf("login with the grant %q: %v %s", x.role, r, r.body)
	}
}

// race sends two logins of one device at the same time. One wins, or one follows the other.
func (l *modelRun) race(x *person) {
	reqs := []signin.LoginRequest{l.randomRequest(x), l.randomRequest(x)}
	replies := make([]reply, len(reqs))
	began := l.clock(l.access)
	var wg sync.WaitGroup
	for i := range reqs {
		wg.Go(func() { replies[i] = l.request(x, signin.Login.Declare(), "", reqs[i]) })
	}
	wg.Wait()
	l.logf("%s on %s: two logins: %v and %v", x.owner.Login, x.owner.DeviceName, replies[0], replies[1])
	before := maps.Clone(x.possible)
	for i, r := range replies {
		if r.code == problem.Conflict { // the login that lost
			continue
		}
		l.loginReplied(x, reqs[i], began, r)
	}
	for w := range before {
		x.possible[w] = true
	}
	for _, req := range reqs {
		if x.role != "" {
			l.written(x, req, began, false)
		}
	}
}

// mayBeOut reports whether the person may have no sign-in.
func (l *modelRun) mayBeOut(x *person) bool {
	return x.possible[rights{}] || x.mayEnd || !x.from.IsZero() && !l.latest().Before(x.from)
}

// overtaken records whose end has passed by any clock, before that clock is set back.
func (l *modelRun) overtaken() {
	for _, x := range l.people {
		if l.mayBeOut(x) {
			x.possible[rights{}] = true
		}
	}
}

func (l *modelRun) kubeconfig(x *person, query string) reply {
	r := l.request(x, signin.GetKubeconfig.Declare(), query, nil)
	l.logf("%s on %s: kubeconfig%s: %v", x.owner.Login, x.owner.DeviceName, query, r)
	switch {
	case !r.receivedAt:
	case r.status == http.StatusOK:
		var k signin.Kubeconfig
		if err := json.Unmarshal(r.body, &k); err != nil {
			l.failf("kubeconfig: %v", err)
			break
		}
		ends, err := time.Parse(time.RFC3339, r.header.Get(signin.ExpiresHeader))
		if err != nil || ends.After(x.by) {
			l.failf("a kubeconfig until %v; the end is %v at the latest (%v)", ends, x.by, err)
		}
		token, err := parseClaims(k.Token.Reveal())
		if err != nil {
			l.failf("token: %v", err)
			break
		}
		granted := slices.DeleteFunc(slices.Collect(maps.Keys(x.possible)), func(w rights) bool { return !x.covers(w) })
		if len(granted) == 0 {
			l.failf("a kubeconfig for the grant %q %v; signed in is one of %v", x.role, x.places, x.possible)
		}
		delete(x.possible, rights{})
		l.holders.add(token.Kubernetes.ServiceAccount.UID, k.Token)
	case r.code == problem.NotReady, r.code == problem.Unavailable && l.trouble:
	case r.code == problem.NotSignedIn:
		if !l.mayBeOut(x) {
			l.failf("not signed in, but one of %v until %v", x.possible, x.from)
		}
	case r.code == problem.NoCapability && x.role == "":
	case r.code == problem.GrantRemoved:
		maps.Copy(x.previous, x.possible)
		if !slices.ContainsFunc(slices.Collect(maps.Keys(x.previous)), func(w rights) bool { return w.role != "" && !x.covers(w) }) {
			l.failf("grant removed, but %q %v is granted; signed in is one of %v", x.role, x.places, x.previous)
		}
		x.possible[rights{}] = true
	case r.code == problem.CannotProvision && (l.skewed || x.tampered):
	default:
		l.failf("kubeconfig: %v %s", r, r.body)
	}
	return r
}

func (l *modelRun) read(x *person) {
	r := l.request(x, signin.Read.Declare(), "", nil)
	l.logf("%s on %s: read: %v", x.owner.Login, x.owner.DeviceName, r)
	var st signin.Status
	switch {
	case !r.receivedAt, r.code == problem.Unavailable && l.trouble, r.code == problem.NoCapability && x.role == "", r.code == problem.CannotProvision && (l.skewed || x.tampered):
	case r.code == problem.NotSignedIn:
		if !l.mayBeOut(x) {
			l.failf("read: not signed in, but one of %v", x.possible)
		}
	case r.status == http.StatusOK, r.status == http.StatusAccepted && r.code == "":
		if err := json.Unmarshal(r.body, &st); err != nil || !x.possible[rights{st.Role, strings.Join(st.Namespaces, ",")}] {
			l.failf("read %s, one of %v is signed in (%v)", r.body, x.possible, err)
		}
	default:
		l.failf("read: %v %s", r, r.body)
	}
}

func (l *modelRun) logout(x *person) {
	r := l.request(x, signin.Logout.Declare(), "?wait=5s", nil)
	l.logf("%s on %s: logout: %v", x.owner.Login, x.owner.DeviceName, r)
	switch {
	case !r.receivedAt, r.code == problem.Unavailable && l.trouble:
		x.possible[rights{}] = true
	case r.status == http.StatusOK:
		x.only(rights{})
	case r.code == problem.NotSignedIn:
		if !l.mayBeOut(x) {
			l.failf("logout: not signed in, but one of %v", x.possible)
		}
	case r.code == problem.NoCapability && x.role == "":
		// Without a grant only an owner gets an answer, and a server that has just started does not
		// know the owners.
	default:
		l.failf("logout: %v %s", r, r.body)
	}
}

// erase runs an administrator's kubectl delete signin.
func (l *modelRun) erase(x *person) {
	l.logf("kubectl delete signin of %s on %s", x.owner.Login, x.owner.DeviceName)
	l.editObject(l.admin.Delete(l.t.Context(), &v1alpha1.TkaSignin{ObjectMeta: metav1.ObjectMeta{Namespace: l.ns, Name: x.owner.Name()}}))
	x.only(rights{})
}

// editObject checks the result of an administrator's write. Other writers may be faster.
func (l *modelRun) editObject(err error) {
	l.t.Helper()
	if client.IgnoreAlreadyExists(client.IgnoreNotFound(err)) != nil && !strings.Contains(err.Error(), "object has been modified") {
		l.t.Fatal(err)
	}
}

func (l *modelRun) changeGrants(x *person) {
	l.mu.Lock()
	x.role, x.places = []string{"view", "edit", "edit", ""}[l.rand.IntN(4)], nil
	x.grants = nil
	if x.role == "edit" && l.rand.IntN(2) == 0 {
		x.places = []string{"default", "kube-public"}
	}
	if x.role != "" {
		x.grants = grant(x.role, 2*time.Hour, x.places...)
	}
	close(l.changed)
	l.changed = make(chan struct{})
	l.mu.Unlock()
	l.logf("%s on %s is granted %q %v", x.owner.Login, x.owner.DeviceName, x.role, x.places)
	for w := range x.possible {
		x.mayEnd = x.mayEnd || w.role != "" && !x.covers(w)
	}
	if l.rand.IntN(2) == 0 {
		l.kubeconfig(x, "") // before the guard runs
	}
}

// tamper changes existing objects as an administrator could.
func (l *modelRun) tamper(x *person) {
	ctx, name := l.t.Context(), x.owner.Name()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: l.ns, Name: name}}
	binding := new(rbacv1.ClusterRoleBinding)
	bound := l.admin.Get(ctx, client.ObjectKey{Name: signin.BindingName(name)}, binding)
	x.mayEnd, x.tampered = true, true
	switch n := l.rand.IntN(7); {
	case n == 0:
		l.logf("tamper: the account of %s on %s is deleted", x.owner.Login, x.owner.DeviceName)
		l.editObject(l.admin.Delete(ctx, account))
	case n == 1:
		l.logf("tamper: the account of %s on %s is recreated", x.owner.Login, x.owner.DeviceName)
		l.editObject(l.admin.Delete(ctx, account))
		l.editObject(l.admin.Create(ctx, account))
	case n == 2:
		l.logf("tamper: the finalizer of %s on %s is taken off, and it is deleted", x.owner.Login, x.owner.DeviceName)
		o := new(v1alpha1.TkaSignin)
		if err := l.admin.Get(ctx, client.ObjectKey{Namespace: l.ns, Name: name}, o); err != nil {
			l.editObject(err)
			return
		}
		o.Finalizers = nil
		l.editObject(l.admin.Update(ctx, o))
		l.editObject(l.admin.Delete(ctx, o))
	case bound != nil:
		l.editObject(bound)
	case n == 3:
		l.logf("tamper: the binding of %s on %s is deleted", x.owner.Login, x.owner.DeviceName)
		l.editObject(l.admin.Delete(ctx, binding))
	case n == 4:
		l.logf("tamper: mallory is added to the binding of %s on %s", x.owner.Login, x.owner.DeviceName)
		binding.Subjects = append(binding.Subjects, rbacv1.Subject{Kind: "User", APIGroup: rbacv1.GroupName, Name: "mallory"})
		l.editObject(l.admin.Update(ctx, binding))
	case n == 5:
		l.logf("tamper: the binding of %s on %s loses its labels", x.owner.Login, x.owner.DeviceName)
		binding.Labels = nil
		l.editObject(l.admin.Update(ctx, binding))
	default:
		l.logf("tamper: %s on %s gets a second binding, to cluster-admin", x.owner.Login, x.owner.DeviceName)
		second := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "second-" + name, Labels: binding.Labels}, Subjects: binding.Subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"}}
		l.editObject(l.admin.Create(ctx, second))
		l.history.forge(string(second.UID))
	}
}

// leap moves the clock of the environment forward, as if both programs had slept.
func (l *modelRun) leap(d time.Duration) {
	l.logf("%v pass", d)
	l.ahead.Add(int64(d))
	l.restart(l.operator) // restart, because its timers use the machine's clock
}

// skew sets the clock of one program wrong, or correct again.
func (l *modelRun) skew() {
	p := []*program{l.access, l.operator}[l.rand.IntN(2)]
	d := []time.Duration{0, 0, 30 * time.Second, -30 * time.Second, 10 * time.Minute, -10 * time.Minute}[l.rand.IntN(6)]
	l.logf("the clock of %s is off by %v", p.name, d)
	l.overtaken()
	p.skew.Store(int64(d))
	l.skewed = true
	l.restart(l.operator)
}

// storm makes the API server fail, or stops the failures.
func (l *modelRun) storm() {
	chances := map[kubetest.Fault]float64{}
	for _, f := range []kubetest.Fault{kubetest.TooManyRequests, kubetest.ServerError, kubetest.Unavailable, kubetest.Conflict, kubetest.Refused, kubetest.Lost,
		kubetest.WatchExpired, kubetest.WatchCut} {
		if l.rand.IntN(3) == 0 {
			chances[f] = []float64{.02, .1, .3}[l.rand.IntN(3)]
		}
	}
	if chances[kubetest.TooManyRequests] > .1 {
		chances[kubetest.TooManyRequests] = .1 // each costs a second
	}
	p := []*program{l.access, l.operator}[l.rand.IntN(2)]
	l.trouble = true
	p.storm.Blow(chances)
	l.logf("a storm before %s: %v; %d watches are cut", p.name, chances, p.storm.CutWatches())
}

// crash kills a program after a number of further writes, or starts a killed program.
func (l *modelRun) crash() {
	p := []*program{l.access, l.operator}[l.rand.IntN(2)]
	l.trouble = true
	if p.killer.dead() {
		l.logf("%s is started again", p.name)
		l.restart(p)
		return
	}
	n := 1 + l.rand.IntN(6)
	l.logf("%s will die after %d writes", p.name, n)
	p.crashAfter(n)
}

// settle ends all failures, waits until the system has settled, and compares it with the model. The
// model then continues from the actual state.
func (l *modelRun) settle() {
	l.logf("rest")
	l.overtaken()
	for _, p := range []*program{l.access, l.operator} {
		p.storm.Blow(nil)
		p.skew.Store(0)
	}
	if !l.access.isSpared() {
		l.restart(l.access)
	}
	// Sign-ins that were refused because of clock differences are accepted by now.
	l.leap(11 * time.Minute)
	var accounts corev1.ServiceAccountList
	l.must(l.admin.List(l.t.Context(), &accounts, client.InNamespace(l.ns)))
	for i := range accounts.Items {
		if a := &accounts.Items[i]; a.Name != "default" && a.Labels == nil { // created by a test
			l.editObject(l.admin.Delete(l.t.Context(), a))
		}
	}
	var why error
	took := l.quiet(func() bool { why = l.unsettled(); return why == nil && l.history.caughtUp() })
	if took < 0 {
		l.failf("no rest within %v: %v", deadline, why)
		return
	}
	tampered := map[string]bool{}
	for _, x := range l.people {
		if x.tampered {
			tampered[x.owner.Name()] = true
		}
	}
	for _, law := range l.history.laws(tampered) {
		l.failf("%s", law)
	}
	l.trouble, l.skewed = false, false
	for _, x := range l.people {
		l.compare(x)
	}
}

// quiet waits for a condition and returns the duration, or -1 after the deadline.
func (l *modelRun) quiet(is func() bool) time.Duration {
	began := time.Now()
	for !is() {
		if time.Since(began) > deadline {
			return -1
		}
		time.Sleep(20 * time.Millisecond)
	}
	return time.Since(began)
}

// unsettled returns the remaining work.
func (l *modelRun) unsettled() error {
	for _, p := range []*program{l.access, l.operator} {
		if p.killer.dead() || !p.ready() {
			return fmt.Errorf("the %s is not at work", p.name)
		}
	}
	if err := l.invariantsAt(l.clock(l.operator)); err != nil {
		return err
	}
	for _, x := range l.people {
		s, err := l.readState(x.owner.Name())
		if err == nil && s.State(l.clock(l.access)) == signin.Ready && !x.covers(key(s)) {
			return fmt.Errorf("%s has %v, granted is %q %v", s.Name, key(s), x.role, x.places)
		}
		if err == nil && s.State(l.clock(l.access)) == signin.Refused {
			return fmt.Errorf("%s is refused though nothing is in its way: %s %s", s.Name, s.Reason, s.Message)
		}
	}
	return nil
}

// key returns the access that a sign-in gives.
func key(s signin.Signin) rights {
	return rights{string(s.Bound.Role()), strings.Join(s.Bound.Namespaces(), ",")}
}

// compare compares the stored state with the model and updates the model.
func (l *modelRun) compare(x *person) {
	s, err := l.readState(x.owner.Name())
	if client.IgnoreNotFound(err) != nil {
		l.t.Fatal(err)
	}
	actual := rights{}
	if err == nil && s.State(l.clock(l.access)) == signin.Ready {
		actual = key(s)
	}
	switch {
	case actual == rights{} && !l.mayBeOut(x):
		l.failf("%s on %s is out; in the model it is one of %v until %v", x.owner.Login, x.owner.DeviceName, x.possible, x.from)
	case actual != rights{} && !x.possible[actual]:
		l.failf("%s on %s has %v; in the model it is one of %v", x.owner.Login, x.owner.DeviceName, actual, x.possible)
	case actual != rights{} && (s.ValidUntil.After(x.by) || s.ValidUntil.Before(x.from.Add(-time.Second))):
		l.failf("%s on %s ends at %v; in the model between %v and %v", x.owner.Login, x.owner.DeviceName, s.ValidUntil, x.from, x.by)
	}
	x.only(actual)
	x.from, x.by, x.mayEnd, x.tampered = s.ValidUntil, s.ValidUntil, false, false
	r := l.kubeconfig(x, "")
	clear(x.previous) // until then, access that is not ready may still be in removal
	if got := r.status == http.StatusOK; got != (actual != rights{}) && l.clock(l.access).Before(s.ValidUntil.Add(-time.Minute)) {
		l.failf("%s on %s has %v and hears %v", x.owner.Login, x.owner.DeviceName, actual, r)
	}
}

// endAll ends all sign-ins, by hand or by time, and checks that nothing remains: no object, no
// accepted token, no work.
func (l *modelRun) endAll() {
	for _, x := range l.people[:1] {
		l.logout(x)
	}
	for range 2 { // expired, then deleted
		l.leap(3 * time.Hour)
		if l.quiet(func() bool { return l.operator.ready() && l.invariantsAt(l.clock(l.operator)) == nil }) < 0 {
			l.failf("no rest after the end: %v", l.invariantsAt(l.clock(l.operator)))
		}
	}
	if l.quiet(func() bool {
		accounts, everywhere, somewhere := l.made()
		var list v1alpha1.TkaSigninList
		l.must(l.admin.List(l.t.Context(), &list, client.InNamespace(l.ns)))
		return len(accounts)+len(everywhere)+len(somewhere)+len(list.Items) == 0
	}) < 0 {
		l.nothingLeft()
	}
	if l.quiet(func() bool { _, known := l.holders.dead(); return known == 0 }) < 0 {
		l.failf("tokens of accounts that are gone are still taken")
	}
	tokens, _ := l.holders.dead()
	last, since := l.requests.now(), time.Now()
	if l.quiet(func() bool {
		if n := l.requests.now(); n != last {
			last, since = n, time.Now()
		}
		return time.Since(since) > 2*time.Second
	}) < 0 {
		l.failf("the programs are never idle")
	}
	l.t.Logf("%d versions seen, %d tokens used to their end; faults: access %v, operator %v", l.history.length(), tokens, l.access.storm.Struck(), l.operator.storm.Struck())
}
