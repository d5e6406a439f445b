package forge

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	gitlab "gitlab.com/gitlab-org/api/client-go/v2"
)

// mergeRequest reads a merge request.
func (g *GitLab) mergeRequest(ctx context.Context, op string, iid int) (*gitlab.MergeRequest, error) {
	if err := g.checkRepository(op); err != nil {
		return nil, err
	}
	k := g.call(ctx, op, g.requestPath(iid), wantObject("iid", "sha", "state"))
	mr, _, err := k.gitlab().MergeRequests.GetMergeRequest(g.project, int64(iid), nil, gitlab.WithContext(ctx))
	if err = k.outcome(err); err == nil && (mr.IID != int64(iid) || !isCommit(mr.SHA) || mr.State == "") {
		return nil, k.unusable("the response is not a merge request")
	}
	return mr, err
}

// Request reads a merge request with all its authors, reviews and checks.
func (g *GitLab) Request(ctx context.Context, iid int) (Request, error) {
	const op = "read a merge request"
	mr, err := g.mergeRequest(ctx, op, iid)
	if err != nil {
		return Request{}, err
	}
	r := Request{Number: iid, URL: mr.WebURL, Head: mr.SHA, Open: mr.State == "opened", Merged: mr.State == "merged", Blocked: blocked(mr)}
	if r.Authors, err = g.authors(ctx, op, mr); err != nil {
		return Request{}, err
	}
	if r.Reviews, err = g.reviews(ctx, op, mr); err != nil {
		return Request{}, err
	}
	err = g.checks(ctx, op, &r)
	return r, err
}

// authors returns all names of all persons who wrote a part of a merge request.
func (g *GitLab) authors(ctx context.Context, op string, mr *gitlab.MergeRequest) ([]string, error) {
	names := map[string]bool{}
	if mr.Author != nil {
		names[mr.Author.Username] = true
	}
	n, head := int64(0), false
	k := g.call(ctx, op, g.requestPath(int(mr.IID), "commits"), wantArray)
	position := func(*gitlab.Commit) int64 { n++; return n }
	commits, err := gitLabList(k, position, func(page gitlab.ListOptions) ([]*gitlab.Commit, *gitlab.Response, error) {
		options := &gitlab.GetMergeRequestCommitsOptions{ListOptions: page}
		return k.gitlab().MergeRequests.GetMergeRequestCommits(g.project, mr.IID, options, gitlab.WithContext(ctx))
	})
	if err != nil {
		return nil, err
	}
	for _, c := range commits {
		head = head || c.ID == mr.SHA
		for _, name := range append(coAuthors(c.Message), c.AuthorName, c.AuthorEmail, c.CommitterName, c.CommitterEmail) {
			names[name] = true
		}
	}
	if !head { // a commit was added in the meantime, so the authors are not completely known
		return nil, &Error{Op: op, Class: Unavailable, Status: http.StatusOK, Message: "the forge does not list all of its commits"}
	}
	delete(names, "")
	return slices.Sorted(maps.Keys(names)), nil
}

// reviews returns the approvals. GitLab reports only the time of an approval, not its commit. An
// approval counts for the head if it is newer than the head.
func (g *GitLab) reviews(ctx context.Context, op string, mr *gitlab.MergeRequest) ([]Review, error) {
	k := g.call(ctx, op, g.requestPath(int(mr.IID), "approvals"), wantObject("approved_by"))
	reported, _, err := k.gitlab().MergeRequests.GetMergeRequestApprovals(g.project, mr.IID, gitlab.WithContext(ctx))
	if err = k.outcome(err); err != nil || len(reported.ApprovedBy) == 0 {
		return nil, err
	}
	k = g.call(ctx, op, g.requestPath(int(mr.IID), "versions"), wantArray)
	id := func(v *gitlab.MergeRequestDiffVersion) int64 { return v.ID }
	versions, err := gitLabList(k, id, func(page gitlab.ListOptions) ([]*gitlab.MergeRequestDiffVersion, *gitlab.Response, error) {
		options := &gitlab.GetMergeRequestDiffVersionsOptions{ListOptions: page}
		return k.gitlab().MergeRequests.GetMergeRequestDiffVersions(g.project, mr.IID, options, gitlab.WithContext(ctx))
	})
	if err != nil {
		return nil, err
	}
	var since time.Time // when the current head was pushed
	if len(versions) > 0 {
		last := slices.MaxFunc(versions, func(a, b *gitlab.MergeRequestDiffVersion) int { return cmp.Compare(a.ID, b.ID) })
		if last.HeadCommitSHA == mr.SHA && last.CreatedAt != nil {
			since = *last.CreatedAt
		}
	}
	var out []Review
	for _, x := range reported.ApprovedBy {
		if x == nil || x.User == nil || x.User.Username == "" {
			continue
		}
		r := Review{By: x.User.Username, Approved: true}
		if x.ApprovedAt != nil {
			r.At = *x.ApprovedAt
			if !since.IsZero() && r.At.After(since) {
				r.Head = mr.SHA
			}
		}
		out = append(out, r)
	}
	return out, nil
}

// checks reads the results of automated checks of the head. If the credential may not read them,
// ChecksKnown stays false.
func (g *GitLab) checks(ctx context.Context, op string, r *Request) error {
	k := g.call(ctx, op, g.projectPath("repository", "commits", r.Head, "statuses"), wantArray)
	id := func(s *gitlab.CommitStatus) int64 { return s.ID }
	all, err := gitLabList(k, id, func(page gitlab.ListOptions) ([]*gitlab.CommitStatus, *gitlab.Response, error) {
		options := &gitlab.GetCommitStatusesOptions{ListOptions: page}
		return k.gitlab().Commits.GetCommitStatuses(g.project, r.Head, options, gitlab.WithContext(ctx))
	})
	if ClassOf(err) == Forbidden {
		return nil
	}
	for _, s := range all {
		r.Checks = append(r.Checks, Check{Name: redact(s.Name), State: redact(s.Status), URL: s.TargetURL})
	}
	r.ChecksKnown = err == nil
	return err
}

// blocked returns the reason why a merge request cannot be merged now. It is empty while GitLab
// still computes the answer.
func blocked(mr *gitlab.MergeRequest) string {
	switch s := mr.DetailedMergeStatus; s {
	case "mergeable", "", "unchecked", "checking", "preparing", "approvals_syncing", "not_open":
		return ""
	case "conflict":
		return "it conflicts with a change that was merged in the meantime"
	case "need_rebase":
		return "it is behind its base, and the project's rules do not allow that"
	case "draft_status":
		return "it is a draft"
	case "not_approved",
		"requested_changes",
		"discussions_not_resolved",
		"security_policy_violations",
		"policies_denied",
		"merge_request_blocked",
		"blocked_status":
		return "the project's rules require more, such as a review at GitLab"
	case "ci_must_pass", "ci_still_running", "status_checks_must_pass", "external_status_checks":
		return "its pipeline has not passed"
	default:
		return "GitLab reports " + redact(s)
	}
}

// Merge merges a merge request if head is its last commit; otherwise it returns a Conflict. If
// exactly that commit was merged before, that is success. If a rule of the project forbids the
// merge, that is Invalid; people must resolve it at GitLab.
func (g *GitLab) Merge(ctx context.Context, iid int, head string) error {
	const op = "merge a merge request"
	if err := checkInput(op, g, isCommit(head), "only a reviewed commit can be merged"); err != nil {
		return err
	}
	k := g.call(ctx, op, g.requestPath(iid, "merge"), nil)
	options := &gitlab.AcceptMergeRequestOptions{SHA: &head, ShouldRemoveSourceBranch: new(true)}
	_, _, err := k.gitlab().MergeRequests.AcceptMergeRequest(g.project, int64(iid), options, gitlab.WithContext(ctx))
	err = k.outcome(err)
	switch c := ClassOf(err); c {
	case "", Invalid, Conflict, Unavailable, Refused:
		mr, again := g.mergeRequest(ctx, op, iid)
		switch {
		case again != nil && err == nil:
			return again
		case again != nil:
		case mr.State == "merged" && mr.SHA == head:
			return nil // also if the response was lost, or another caller merged it first
		case err == nil:
			return &Error{
				Op:      op,
				Class:   Unavailable,
				Status:  http.StatusOK,
				Message: "it is not merged yet: GitLab reports " + redact(mr.State),
			}
		case c == Refused: // GitLab answers 401 to a user without merge rights; the credential is valid
			return &Error{Op: op, Class: Forbidden, Status: http.StatusUnauthorized, Message: "the token's user may not merge it"}
		}
	}
	return err
}

// Withdraw closes a merge request and deletes its branch, which must have our prefix. If the
// request is closed or gone already, that is success. It first adds the comment, which is Markdown.
// If closing fails, the next try adds the comment again.
func (g *GitLab) Withdraw(ctx context.Context, iid int, comment string) error {
	const op = "close a merge request"
	mr, err := g.mergeRequest(ctx, op, iid)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(mr.SourceBranch, ownPrefix) || !isBranch(mr.SourceBranch) || mr.SourceProjectID != mr.TargetProjectID {
		return &Error{Op: op, Class: Invalid, Message: "Tailplane did not open it"}
	}
	if mr.State == "opened" {
		if comment != "" {
			k := g.call(ctx, op, g.requestPath(iid, "notes"), nil)
			note := &gitlab.CreateMergeRequestNoteOptions{Body: &comment}
			_, _, err := k.gitlab().Notes.CreateMergeRequestNote(g.project, int64(iid), note, gitlab.WithContext(ctx))
			if err = k.outcome(err); err != nil {
				return err
			}
		}
		if err := g.edit(ctx, op, iid, &gitlab.UpdateMergeRequestOptions{StateEvent: new("close")}); err != nil {
			return err
		}
	}
	k := g.call(ctx, op, g.projectPath("repository", "branches", mr.SourceBranch), nil)
	_, err = k.gitlab().Branches.DeleteBranch(g.project, mr.SourceBranch, gitlab.WithContext(ctx))
	return ignoreNotFound(k.outcome(err))
}
