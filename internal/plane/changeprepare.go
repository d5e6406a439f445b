package plane

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/fleet/gitops"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/util/redact"
)

// Limits on a file and on the stored diff, in bytes. A change is stored in a ConfigMap, which holds at most 1 MiB.
const (
	maxFile       = 512 << 10
	maxStoredDiff = 256 << 10
)

// preparedChange is a change before it is proposed, with the data to propose it.
type preparedChange struct {
	ref  gitops.Ref
	edit gitops.Edit
	file gitops.File
	text []byte
	Preview
}

// prepare computes the change that e describes. It returns an error, and no data of the file, if p does not permit the change.
func (d *ChangeService) prepare(ctx context.Context, p access.Permit, e Edit, before []gitops.Edit) (out preparedChange, _ access.Permit, err error) {
	if err := d.readEdited(ctx, p, e, &out); err != nil {
		return out, p, err
	}
	was, err := d.specIn(out.file.Content, out.ref)
	if err != nil {
		return out, p, err
	}
	var is map[string]any
	text, applyErr := d.Layout.Apply(out.file.Content, out.ref, append(slices.Clone(before), out.edit)...)
	if applyErr == nil {
		if is, err = d.specIn(text, out.ref); err != nil {
			return out, p, err
		}
	}
	out.OrgName, out.Platform = gitops.Owner(out.ref, was, is)
	if p, err = p.In(out.OrgName); err != nil {
		return out, p, err
	}
	if applyErr != nil {
		return out, p, changeProblem(applyErr)
	}
	if out.text = text; len(bytes.TrimSpace(text)) == 0 {
		out.text = nil
	}
	r := gitops.AssessRisk(was, is)
	old := out.file.Content
	if out.file.Version == "" {
		old = nil
	}
	out.Base, out.Version, out.Risk = out.file.Commit, out.file.Version, Risk{r.Level, append([]string{}, r.Why...)}
	if out.Diff = unifiedDiff(out.File, old, out.text); len(out.Diff) > maxStoredDiff {
		out.Diff = strings.ToValidUTF8(out.Diff[:maxStoredDiff], "") + "\n(the diff is longer: see the pull request for all of it)\n"
	}
	return out, p, d.tryOut(ctx, out.ref, is, &out.Preview)
}

// readEdited checks the edit, and reads the file that it changes.
func (d *ChangeService) readEdited(ctx context.Context, p access.Permit, e Edit, out *preparedChange) error {
	if err := d.checkRepository(); err != nil {
		return err
	}
	if hasCredential(e.Patch) || hasCredential(e.Spec) {
		return credentialRefused("spec")
	}
	out.edit = gitops.Edit{Patch: e.Patch, Spec: e.Spec, Remove: e.Remove}
	if err := out.edit.Validate(); err != nil {
		return changeProblem(err)
	}
	var err error
	if out.ref, err = gitops.ParseRef(string(e.Kind), string(e.Name)); err != nil {
		return changeProblem(err)
	}
	if org, _ := gitops.Owner(out.ref, nil, nil); org != "" { // by name alone: check the permit before the file is read
		if _, err := p.In(org); err != nil {
			return err
		}
	}
	if out.File, err = d.Layout.File(out.ref); errors.Is(err, gitops.ErrInvalidEdit) {
		return changeProblem(err)
	} else if err != nil {
		return problem.New(problem.Internal, "internal error").WithCause(err)
	}
	if out.file, err = d.Repository.ReadFile(ctx, "", out.File); err != nil {
		return err
	}
	if len(out.file.Content) > maxFile {
		return problem.New(problem.Conflict, "The file is larger than 512 KiB, so this server does not change it.", "Store each object in a separate file (plane.gitops.path).")
	}
	return nil
}

// specIn returns an object's spec in a file, or nil if the file does not have the object.
func (d *ChangeService) specIn(file []byte, r gitops.Ref) (map[string]any, error) {
	spec, found, err := d.Layout.Spec(file, r)
	if !found {
		spec = nil
	}
	return spec, changeProblem(err)
}

// tryOut adds to a preview whether the API server would accept the object, and which rules between objects it would break.
func (d *ChangeService) tryOut(ctx context.Context, r gitops.Ref, spec map[string]any, out *Preview) error {
	if out.Note = d.Layout.Note(); out.Note != "" {
		return nil
	}
	err := d.DryRun(ctx, r, spec)
	if problem.CodeOf(err) == problem.Validation {
		out.Refused = err.Error()
		return nil
	}
	if err != nil || d.BrokenRules == nil {
		return err
	}
	rules, err := d.BrokenRules(ctx, r, spec)
	out.Rules = slices.DeleteFunc(rules, func(r Rule) bool { return out.OrgName != "" && r.Org != out.OrgName })
	return err
}

// unifiedDiff returns the unified diff of a file, or "" if nothing changed. A nil text means that the file does not exist. There is no further
// limit: a file has at most maxFile bytes, and the work grows as n log n.
func unifiedDiff(path string, old, updated []byte) string {
	from, to := "a/"+path, "b/"+path
	if old == nil {
		from = "/dev/null"
	}
	if updated == nil {
		to = "/dev/null"
	}
	return string(diff.Diff(from, old, to, updated))
}

// hasCredential reports whether a text contains something that can only be a credential.
func hasCredential[T ~string | ~[]byte](text T) bool {
	return redact.Certain(string(text)) != string(text)
}

// credentialRefused returns the error for a request that would write a credential into the repository and its history, where every reader sees it.
func credentialRefused(field string) error {
	e := problem.New(problem.Validation, "The request contains a credential, and the repository's history keeps every proposal.", "Store the credential in a Secret of the cluster, and name that Secret here. If you have sent the credential anywhere, replace it.")
	e.Field = field
	return e
}

// changeProblem converts an error of package change to a problem.
func changeProblem(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, gitops.ErrSelfApproval):
		return problem.New(problem.SelfApproval, "You wrote a part of this change.", "Ask another person to approve it.")
	case errors.Is(err, gitops.ErrHeadChanged), errors.Is(err, gitops.ErrNotOpen), errors.Is(err, gitops.ErrNotApproved), errors.Is(err, gitops.ErrBlocked):
		return problem.New(problem.Conflict, sentence(err), "Check the current state of the change.")
	case errors.Is(err, gitops.ErrObjectNotFound):
		return problem.New(problem.NotFound, sentence(err), "Send its whole spec to create it.")
	case errors.Is(err, gitops.ErrObjectExists):
		return problem.New(problem.Conflict, sentence(err), "Send a patch instead.")
	case errors.Is(err, gitops.ErrUnreadableFile), errors.Is(err, gitops.ErrDuplicateObject):
		return problem.New(problem.Conflict, sentence(err), "Correct the file in the repository first.")
	}
	return problem.New(problem.Validation, sentence(err), "A patch is a JSON object with fields of the spec.")
}

func sentence(err error) string {
	s := []rune(err.Error())
	if len(s) > 0 && 'a' <= s[0] && s[0] <= 'z' {
		s[0] -= 'a' - 'A'
	}
	return string(s) + "."
}
