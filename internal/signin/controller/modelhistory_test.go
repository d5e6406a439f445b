//go:build unix

package controller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/secret"
)

// A history contains every version of every object of an environment, in the order of the API
// server's writes. A property that holds at each of these moments holds at all times.
type history struct {
	p     *env
	begun time.Time
	late  *blackhole

	mu      sync.Mutex
	moment  []moment
	checked uint64               // version up to which the laws were checked
	known   map[string]bool      // UIDs
	died    map[string]time.Time // time at which the watch reported the deletion of an account, by UID; the deletion was not later
	forged  map[string]bool      // UIDs of bindings that a test created
	marks   map[string]int       // see abreast
}

// A moment is one write.
type moment struct {
	version uint64
	gone    bool
	object  client.Object
}

// followHistory starts a history.
func followHistory(p *env) *history {
	h := &history{p: p, begun: time.Now(), late: &blackhole{paths: map[string]bool{}}, known: map[string]bool{}, died: map[string]time.Time{}, forged: map[string]bool{}, marks: map[string]int{}}
	for list, opts := range map[client.ObjectList][]client.ListOption{
		&corev1.ServiceAccountList{}: {client.InNamespace(p.ns)}, &v1alpha1.TkaSigninList{}: {client.InNamespace(p.ns)},
		&rbacv1.ClusterRoleBindingList{}: nil, &rbacv1.RoleBindingList{}: nil,
	} {
		w, err := p.admin.Watch(p.t.Context(), list, opts...)
		if err != nil {
			p.t.Fatal(err)
		}
		p.t.Cleanup(w.Stop)
		go func() {
			for e := range w.ResultChan() {
				h.handle(e)
			}
		}()
	}
	return h
}

func (h *history) handle(e watch.Event) {
	o, ok := e.Object.(client.Object)
	if !ok {
		return
	}
	version, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		h.p.t.Errorf("version %q: %v", o.GetResourceVersion(), err)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if strings.HasPrefix(o.GetName(), mark) {
		if e.Type == watch.Deleted {
			h.marks[o.GetName()]++
		}
		return
	}
	if !h.isOwned(o) && !h.known[string(o.GetUID())] {
		return
	}
	h.known[string(o.GetUID())] = true // kept even if a test removes the labels
	h.moment = append(h.moment, moment{version, e.Type == watch.Deleted, o})
	if _, account := o.(*corev1.ServiceAccount); account && e.Type == watch.Deleted {
		h.died[string(o.GetUID())] = time.Now()
	}
}

// length returns the number of recorded writes.
func (h *history) length() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.moment)
}

// forge records a binding that a test created, so that it is not attributed to the operator.
func (h *history) forge(uid string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forged[uid] = true
}

// isOwned reports whether o belongs to this environment.
func (h *history) isOwned(o client.Object) bool {
	if _, account := o.(*corev1.ServiceAccount); account && o.GetName() == "default" {
		return false // every namespace has this account
	}
	return o.GetNamespace() == h.p.ns || o.GetLabels()[v1alpha1.SigninNamespaceLabel] == h.p.ns ||
		slices.ContainsFunc(subjects(o), func(s rbacv1.Subject) bool { return s.Namespace == h.p.ns })
}

func subjects(o client.Object) []rbacv1.Subject {
	switch b := o.(type) {
	case *rbacv1.ClusterRoleBinding:
		return b.Subjects
	case *rbacv1.RoleBinding:
		return b.Subjects
	}
	return nil
}

func roleOf(o client.Object) string {
	switch b := o.(type) {
	case *rbacv1.ClusterRoleBinding:
		return b.RoleRef.Name
	case *rbacv1.RoleBinding:
		return b.RoleRef.Name
	}
	return ""
}

// caughtUp reports whether the history contains everything that is stored.
func (h *history) caughtUp() bool {
	known := map[string]string{} // version by UID
	h.mu.Lock()
	for _, m := range h.moment {
		if uid := string(m.object.GetUID()); m.gone {
			delete(known, uid)
		} else {
			known[uid] = m.object.GetResourceVersion()
		}
	}
	h.mu.Unlock()
	accounts, everywhere, somewhere := h.p.made()
	var list v1alpha1.TkaSigninList
	if err := h.p.admin.List(h.p.t.Context(), &list, client.InNamespace(h.p.ns)); err != nil {
		h.p.t.Fatal(err)
	}
	stored := map[string]string{}
	for i := range accounts {
		stored[string(accounts[i].UID)] = accounts[i].ResourceVersion
	}
	for i := range everywhere {
		stored[string(everywhere[i].UID)] = everywhere[i].ResourceVersion
	}
	for i := range somewhere {
		stored[string(somewhere[i].UID)] = somewhere[i].ResourceVersion
	}
	for i := range list.Items {
		stored[string(list.Items[i].UID)] = list.Items[i].ResourceVersion
	}
	return maps.Equal(known, stored)
}

const mark = "mark-" // prefix of the names of objects that abreast creates

// isCurrent waits until the history contains all writes so far, including objects that were created
// and deleted in the meantime. For each kind, it creates and deletes an object and waits for the
// events.
func (h *history) isCurrent() {
	h.p.t.Helper()
	h.mu.Lock()
	name := fmt.Sprintf("%s%s-%d", mark, h.p.ns, len(h.marks))
	h.mu.Unlock()
	m, role := metav1.ObjectMeta{Namespace: h.p.ns, Name: name}, rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"}
	marks := []client.Object{&corev1.ServiceAccount{ObjectMeta: m}, &rbacv1.RoleBinding{ObjectMeta: m, RoleRef: role}, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: role}}
	for _, o := range marks {
		if err := h.p.admin.Create(h.p.t.Context(), o); err != nil {
			h.p.t.Fatal(err)
		}
		if err := h.p.admin.Delete(h.p.t.Context(), o); client.IgnoreNotFound(err) != nil { // the model also deletes accounts when it rests
			h.p.t.Fatal(err)
		}
	}
	h.p.until("the watch has reported every stored object", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.marks[name] == len(marks)
	})
}

// laws returns the violations since its last call. tampered contains the names of sign-ins that a
// test changed by hand. Their status may be wrong for a moment.
func (h *history) laws(tampered map[string]bool) (broken []string) {
	h.isCurrent()
	h.mu.Lock()
	all := slices.Clone(h.moment)
	forged, checked := maps.Clone(h.forged), h.checked
	for _, m := range all {
		h.checked = max(h.checked, m.version)
	}
	h.mu.Unlock()
	slices.SortStableFunc(all, func(a, b moment) int { return cmp.Compare(a.version, b.version) })
	now := map[string]client.Object{} // by UID
	fail := func(m moment, format string, args ...any) {
		broken = append(broken, fmt.Sprintf("at %d: ", m.version)+fmt.Sprintf(format, args...)+before(all, m))
	}
	for _, m := range all {
		uid := string(m.object.GetUID())
		if m.gone {
			delete(now, uid)
		} else {
			now[uid] = m.object
		}
		if m.version <= checked {
			continue
		}
		accounts, roles, places := map[string][]string{}, map[string]map[string]bool{}, map[string]map[string]bool{}
		for uid, o := range now {
			switch o.(type) {
			case *corev1.ServiceAccount:
				if s := o.GetLabels()[v1alpha1.SigninUIDLabel]; s != "" {
					accounts[s] = append(accounts[s], uid)
				}
			case *rbacv1.ClusterRoleBinding, *rbacv1.RoleBinding:
				if forged[uid] {
					continue
				}
				for _, s := range subjects(o) {
					if s.Namespace != h.p.ns {
						continue
					}
					if roles[s.Name] == nil {
						roles[s.Name], places[s.Name] = map[string]bool{}, map[string]bool{}
					}
					roles[s.Name][roleOf(o)] = true
					places[s.Name][o.GetNamespace()] = true
				}
			}
		}
		for s, uids := range accounts {
			if len(uids) > 1 {
				fail(m, "the sign-in %s has %d live accounts", s, len(uids))
			}
		}
		for name, bound := range roles {
			if len(bound) > 1 {
				fail(m, "%s has the roles %v", name, slices.Sorted(maps.Keys(bound)))
			}
			if places[name][""] && len(places[name]) > 1 {
				fail(m, "%s is bound in the whole cluster and in %v", name, slices.Sorted(maps.Keys(places[name])))
			}
		}
		o, ok := m.object.(*v1alpha1.TkaSignin)
		if !ok || tampered[o.Name] {
			continue
		}
		s := signinOf(o)
		if m.gone {
			for uid, x := range now {
				if x.GetLabels()[v1alpha1.SigninUIDLabel] == s.UID && !forged[uid] {
					fail(m, "%s is gone, and there still is %T %s/%s", s.Name, x, x.GetNamespace(), x.GetName())
				}
			}
			continue
		}
		if s.Phase != signin.PhaseReady || s.Generation != s.ObservedGeneration || s.Deleting {
			continue
		}
		where := s.Bound.Namespaces()
		if len(where) == 0 {
			where = []string{""}
		}
		if got := slices.Sorted(maps.Keys(roles[s.Name])); !slices.Equal(got, []string{string(s.Bound.Role())}) {
			fail(m, "%s shows the role %s; bound is %v", s.Name, s.Bound.Role(), got)
		}
		got := slices.DeleteFunc(slices.Sorted(maps.Keys(places[s.Name])), func(ns string) bool {
			return !slices.Contains(where, ns) && h.late.binding(ns) // until the operator sees the namespace
		})
		if !slices.Equal(got, where) {
			fail(m, "%s is shown to be bound in %q; it is in %q", s.Name, where, got)
		}
		if now[s.ServiceAccountUID] == nil {
			fail(m, "%s shows an account that is not there", s.Name)
		}
	}
	return broken
}

// before formats the last writes for a sign-in up to a moment.
func before(all []moment, m moment) string {
	var lines []string
	for _, x := range all {
		if x.version > m.version || x.object.GetName() != m.object.GetName() && x.object.GetLabels()[v1alpha1.SigninUIDLabel] != string(m.object.GetUID()) {
			continue
		}
		line := fmt.Sprintf("\n\t%d %T %s, gone %v", x.version, x.object, x.object.GetName(), x.gone)
		if o, ok := x.object.(*v1alpha1.TkaSignin); ok {
			line += fmt.Sprintf(", generation %d, annotations %v, by %s: %+v", o.Generation, o.Annotations, lastWriter(o), signinOf(o))
		}
		lines = append(lines, line)
	}
	return strings.Join(lines[max(0, len(lines)-8):], "")
}

func lastWriter(o client.Object) (who string) {
	var last time.Time
	for _, f := range o.GetManagedFields() {
		if f.Time != nil && !f.Time.Time.Before(last) {
			who, last = f.Manager+" "+f.Subresource, f.Time.Time
		}
	}
	return who
}

// tokenHolders use tokens continuously, like a person who copied one.
type tokenHolders struct {
	w  *modelEnv
	mu sync.Mutex
	of map[string]*tokenHolder // by the UID of the account

	slowest time.Duration // slowest response; a slow API server also learns of a deletion late
}

type tokenHolder struct {
	token     secret.Text
	last      time.Time // start of the last accepted request
	unknown   bool      // the API server returned 401 after the account was deleted
	succeeded int
}

// revoked is how long a token may be accepted after its account is deleted: the lifetime of the API
// server's token cache, plus one second for the clock's precision.
const revoked = 11 * time.Second

func holdTokens(w *modelEnv) *tokenHolders {
	h := &tokenHolders{w: w, of: map[string]*tokenHolder{}}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			h.round(ctx)
			select {
			case <-ctx.Done():
			case <-time.After(400 * time.Millisecond):
			}
		}
	})
	w.t.Cleanup(func() { cancel(); wg.Wait() })
	return h
}

// add adds a token holder. At most twelve are active.
func (h *tokenHolders) add(account string, token secret.Text) {
	h.mu.Lock()
	defer h.mu.Unlock()
	alive := 0
	for _, x := range h.of {
		if !x.unknown {
			alive++
		}
	}
	if h.of[account] == nil && alive < 12 {
		h.of[account] = &tokenHolder{token: token}
	}
}

func (h *tokenHolders) round(ctx context.Context) {
	h.mu.Lock()
	now := maps.Clone(h.of)
	h.mu.Unlock()
	for account, x := range now {
		if x.unknown {
			continue
		}
		h.w.history.mu.Lock()
		died, dead := h.w.history.died[account]
		h.w.history.mu.Unlock()
		began := time.Now()
		status, err := h.use(ctx, x.token)
		h.mu.Lock()
		h.slowest = max(h.slowest, time.Since(began))
		switch {
		case err != nil: // no response is not an accepted request
		case status == http.StatusUnauthorized:
			x.unknown = x.unknown || dead
		case status == http.StatusOK:
			x.succeeded++
			x.last = began
			if late := began.Sub(died); dead && late > revoked+h.slowest {
				h.w.t.Errorf("a token was taken %v after its account was gone; the slowest answer took %v", late, h.slowest)
			}
		}
		h.mu.Unlock()
	}
}

// use lists pods with a token.
func (h *tokenHolders) use(ctx context.Context, token secret.Text) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c := h.w.cluster.TokenConfig(token.Reveal())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.w.cluster.Server+"/api/v1/namespaces/default/pods?limit=1", nil)
	if err != nil {
		return 0, err
	}
	rt, err := rest.TransportFor(c)
	if err != nil {
		return 0, err
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	_ = resp.Body.Close()
	return resp.StatusCode, nil
}

// dead returns the number of tokens of deleted accounts, and how many of them the API server still
// accepts.
func (h *tokenHolders) dead() (all, known int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.w.history.mu.Lock()
	defer h.w.history.mu.Unlock()
	for account, x := range h.of {
		if _, dead := h.w.history.died[account]; dead {
			all++
			if !x.unknown {
				known++
			}
		}
	}
	return all, known
}
