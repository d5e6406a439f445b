package requests

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// ask stores a request. A pending or approved one of the same device for the same is answered instead.
func (s *Service) ask(ctx context.Context, p access.Permit, req AskRequest) (Asked, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	now := s.Now()
	if err := p.Require(access.RequestCreate, now); err != nil {
		return Asked{}, err
	}
	if req.BreakGlass {
		return Asked{}, problem.New(problem.NotEnabled, "This server has no break-glass access.", "Ask for the role without breakGlass.")
	}
	if err := s.fresh(ctx); err != nil {
		return Asked{}, err
	}
	wish := access.Request{Period: time.Duration(req.Period), Namespaces: req.Namespaces, Reason: string(req.Reason)}
	if wish.Role = access.Role(req.Role); req.Role != "" {
		for name := range strings.SplitSeq(req.Role, ",") {
			if _, err := access.ParseRole(name); err != nil {
				return Asked{}, problem.New(problem.RoleNotGranted, fmt.Sprintf("%v, so no rule lets you ask for it.", err), "Ask for one of the roles of your rules.")
			}
		}
	}
	terms, err := p.Ask(wish)
	if err != nil {
		return Asked{}, err
	}
	want := s.newRequest(p.Caller(), terms, wish.Reason, now)
	if err := s.check(ctx, s.signinOf(want, terms.Period)); err != nil {
		return Asked{}, err
	}
	all, ok := s.Store.All()
	if !ok {
		return Asked{}, unavailable(fmt.Errorf("the access requests are not known yet"))
	}
	if twin, is, err := s.twin(ctx, want, all); is || err != nil {
		return twin, err
	}
	if err := s.limit(want, all, now); err != nil {
		return Asked{}, err
	}
	r, err := s.Store.Create(ctx, want)
	if err != nil {
		return Asked{}, unavailable(err)
	}
	v, _ := s.judge(ctx, r)
	return Asked{View: s.view(p, r, v)}, nil
}

func (s *Service) newRequest(c access.Caller, terms access.Ask, reason string, now time.Time) Request {
	now = now.UTC().Truncate(time.Second)
	wait := s.Limits.PendingFor
	if terms.Approvals == 0 { // nothing but its use is missing
		wait = min(wait, s.Limits.UseWithin)
	}
	return Request{
		Name: newName(), ClusterName: s.ClusterName, ClusterID: s.ClusterID,
		Requester: Requester{Person: access.PersonOf(c), DisplayName: c.DisplayName, DeviceName: c.Device.Name, Tailnet: c.Tailnet, Tags: c.TagNames()},
		Rule:      terms.Rule, Binds: terms.Binds, Period: terms.Period, Approvals: terms.Approvals, Reason: reason, Record: terms.Record,
		AskedAt: now, PendingUntil: now.Add(wait),
	}
}

func (s *Service) check(ctx context.Context, want signin.Signin) error {
	if s.Check == nil {
		return nil
	}
	return s.Check(ctx, want)
}

// twin returns the pending or approved request of the same device for the same roles. One for another reason or period
// refuses the new one. The cache may lag, so it reads the request again.
func (s *Service) twin(ctx context.Context, want Request, all []Request) (Asked, bool, error) {
	for _, r := range all {
		if r.Requester.Person != want.Requester.Person || !r.Binds.Equal(want.Binds) || r.BreakGlass != want.BreakGlass {
			continue
		}
		if r.Decision != nil || r.Use != nil || !s.Now().Before(r.deadline()) {
			continue // that never changes
		}
		now, err := s.Store.Get(ctx, r.Name)
		if err != nil {
			continue // it is gone, or another request is possible
		}
		v, _ := s.judge(ctx, now)
		if v.State != Pending && v.State != Approved {
			continue
		}
		if now.Reason != want.Reason || now.Period != want.Period {
			return Asked{}, true, problem.New(problem.RequestChanged, fmt.Sprintf("You have asked for the same with another reason or period: %s is %s.", now.Name, v.State),
				"To ask anew, cancel it first: tka request cancel "+now.Name)
		}
		view := s.viewOf(now, v)
		view.Mine = true
		return Asked{View: view, existing: true}, true, nil
	}
	return Asked{}, false, nil
}

// limit rejects a request of someone who has asked too often, and every one if too many are pending. Tagged nodes together
// have a fifth of all places, so that they lock no person out.
func (s *Service) limit(want Request, all []Request, now time.Time) error {
	mine, pending, taggedPending, today := 0, 0, 0, 0
	for _, r := range all {
		same := r.asker() == want.asker()
		if same && now.Sub(r.AskedAt) < 24*time.Hour {
			today++
		}
		if r.Decision != nil || r.Use != nil || !now.Before(r.deadline()) {
			continue
		}
		if pending++; len(r.Requester.Tags) > 0 {
			taggedPending++
		}
		if same {
			mine++
		}
	}
	l, isTagged := s.Limits, len(want.Requester.Tags) > 0
	switch {
	case mine >= l.MaxPendingPerLogin:
		return tooMany("You have %s that are neither used nor over.", "Cancel what you no longer need: tka request cancel ID", problem.Plural(mine, "request"))
	case today >= l.MaxAskedPerDay:
		return tooMany("You have asked %d times within a day.", "Ask again later.", today)
	case pending >= l.MaxPending, isTagged && taggedPending >= l.MaxPending/5, len(all) >= l.MaxKept+l.MaxPending:
		return tooMany("The server holds %s, which is its limit.", "Ask an administrator of the server.", problem.Plural(cmp.Or(pending, len(all)), "request"))
	}
	return nil
}

// asker returns whose requests count together: those of a login, or of all nodes with the same tags.
func (r Request) asker() string {
	if len(r.Requester.Tags) > 0 {
		return strings.Join(slices.Sorted(slices.Values(r.Requester.Tags)), ",")
	}
	return strings.ToLower(r.Requester.Login)
}

func tooMany(format, advice string, args ...any) error {
	return problem.New(problem.TooManyRequests, fmt.Sprintf(format, args...), advice).WithRetryAfter(time.Minute)
}

// list returns the requests that the caller may see, the newest first.
func (s *Service) list(ctx context.Context, p access.Permit, req ListRequest) (List, error) {
	if err := p.Require(access.RequestList, s.Now()); err != nil {
		return List{}, err
	}
	all, ok := s.Store.All()
	if !ok {
		return List{}, unavailable(fmt.Errorf("the access requests are not known yet"))
	}
	all = slices.DeleteFunc(slices.Clone(all), func(r Request) bool { return !s.maySee(p, r) || bool(req.Mine) && !r.isOf(p.Caller()) })
	facts, _ := s.facts(ctx, all...) // a failed lookup shows approvals that cannot be confirmed
	now, out := s.Now(), List{Requests: []View{}}
	for i, r := range all {
		if v := Judge(r, facts[i], now); req.State == "" || v.State == req.State {
			out.Requests = append(out.Requests, s.view(p, r, v))
		}
	}
	slices.SortFunc(out.Requests, func(a, b View) int { return cmp.Or(b.AskedAt.Compare(a.AskedAt), cmp.Compare(a.ID, b.ID)) })
	return out, nil
}

// await delays a request to read until the state is no longer Pending, or the wait ends.
func (s *Service) await(ctx context.Context, p access.Permit, req ReadRequest) error {
	r, err := s.get(ctx, p, req.ID)
	if err != nil {
		return nil // read returns the error
	}
	v, _ := s.judge(ctx, r)
	limit := min(time.Duration(req.Wait), s.MaxWait)
	if v.State != Pending {
		return nil
	}
	limit = min(limit, max(v.Until.Sub(s.Now()), 0))
	wait, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err = s.Store.Await(wait, req.ID, func(now Request, there bool) bool { return !there || now.Version != r.Version })
	if err != nil && (ctx.Err() != nil || wait.Err() == nil) {
		return unavailable(err)
	}
	return nil
}

func (s *Service) read(ctx context.Context, p access.Permit, req ReadRequest) (View, error) {
	if err := p.Require(access.RequestRead, s.Now()); err != nil {
		return View{}, err
	}
	r, err := s.get(ctx, p, req.ID)
	if err != nil {
		return View{}, err
	}
	v, _ := s.judge(ctx, r)
	return s.view(p, r, v), nil
}
