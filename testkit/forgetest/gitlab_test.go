package forgetest_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/testkit/forgetest"
)

// labStep is one request to a GitLab that uses no code of the product, with the response that GitLab's own sources
// and manuals define.
type labStep struct {
	source, token, question string // "METHOD /path"; {runner} is an ID
	body                    string
	status                  int
	has, lacks              []string // of the response
	header                  map[string]string
}

func runLab(t *testing.T, g *forgetest.GitLabFake, runner int64, steps []labStep) {
	t.Helper()
	client := &http.Client{Timeout: time.Minute}
	for _, s := range steps {
		method, path, _ := strings.Cut(strings.ReplaceAll(s.question, "{runner}", fmt.Sprint(runner)), " ")
		req, err := http.NewRequestWithContext(t.Context(), method, g.URL+"/api/v4"+path, strings.NewReader(s.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Private-Token", s.token)
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != s.status {
			t.Errorf("%s: %s answers %d, want %d: %s", s.source, s.question, res.StatusCode, s.status, body)
		}
		for _, x := range s.has {
			if !strings.Contains(string(body), x) {
				t.Errorf("%s: %s answers without %s: %s", s.source, s.question, x, body)
			}
		}
		for _, x := range s.lacks {
			if strings.Contains(string(body), x) {
				t.Errorf("%s: %s answers with %s: %s", s.source, s.question, x, body)
			}
		}
		for k, v := range s.header {
			if got := res.Header.Get(k); got != v {
				t.Errorf("%s: %s answers %s: %q, want %q", s.source, s.question, k, got, v)
			}
		}
	}
}

// The behaviour of GitLabFake, with the source that defines it for GitLab.
func TestGitLabContract(t *testing.T) {
	g := forgetest.NewGitLab(t)
	group := g.AddGroup("acme")
	other := g.AddGroup("other")
	mine := []int64{group}
	api := g.AddToken(forgetest.GitLabToken{Scopes: []string{"api"}, Owns: mine})
	create := g.AddToken(forgetest.GitLabToken{Scopes: []string{"create_runner"}, Owns: mine})
	manage := g.AddToken(forgetest.GitLabToken{Scopes: []string{"manage_runner"}, Owns: mine})
	reads := g.AddToken(forgetest.GitLabToken{Scopes: []string{"read_api"}, Owns: mine})
	expired := g.AddToken(forgetest.GitLabToken{Scopes: []string{"api"}, ExpiresAt: time.Now().Add(-time.Hour)})
	runner := g.AddRunner(forgetest.GitLabRunner{Group: group, Tags: []string{"nix"}, Note: "a note"})
	foreign := g.AddRunner(forgetest.GitLabRunner{Group: other, RunUntagged: true})
	reporter := g.AddToken(forgetest.GitLabToken{Scopes: []string{"api"}, Level: 20, Owns: []int64{other}})
	stranger := g.AddToken(forgetest.GitLabToken{Scopes: []string{"api"}, Owns: []int64{other}})
	job, kept := g.StartJob(runner.ID, 5), g.StartJob(runner.ID, 6)
	g.RestrictCancel(6, forgetest.NoOne)
	newRunner := fmt.Sprintf(`{"runner_type":"group_type","group_id":%d,"tag_list":["a,b"]}`, group)

	const runners, userRunners, details, self, offset, guard = "lib/api/ci/runners.rb", "lib/api/user_runners.rb", "lib/api/entities/ci/runner_details.rb",
		"lib/api/personal_access_tokens/self_information.rb", "lib/gitlab/pagination/offset_pagination.rb", "lib/api/api_guard.rb"
	runLab(t, g, runner.ID, []labStep{
		{self + ": any scope", create, "GET /personal_access_tokens/self", "", 200, []string{`"scopes":["create_runner"]`, `"active":true`}, nil, nil},
		{guard + ": no token", "", "GET /personal_access_tokens/self", "", 401, []string{"401 Unauthorized"}, nil, nil},
		{guard + ": an expired one", expired, "GET /personal_access_tokens/self", "", 401, []string{"invalid_token"}, nil, nil},

		{userRunners + ": create_runner is enough, and for nothing else", create, "POST /user/runners", newRunner, 201, []string{`"token":"glrt-`}, nil, nil},
		{guard + ": insufficient_scope", create, "GET /runners/{runner}", "", 403, []string{"insufficient_scope"}, nil, nil},
		{userRunners + ": a foreign group is forbidden", api, "POST /user/runners", fmt.Sprintf(`{"runner_type":"group_type","group_id":%d,"run_untagged":true}`, other), 403, nil, nil, nil},
		{userRunners + ": no tags and nothing untagged", api, "POST /user/runners", fmt.Sprintf(`{"runner_type":"group_type","group_id":%d,"run_untagged":false}`, group), 400, []string{"tags_list"}, nil, nil},

		{runners + ": manage_runner is for /runners/:id", manage, "GET /runners/{runner}", "", 200, []string{`"maintenance_note":"a note"`, `"tag_list":["nix"]`, `"never_contacted"`}, []string{"glrt-"}, nil},
		{runners + ": and not for the runners of a group", manage, fmt.Sprintf("GET /groups/%d/runners", group), "", 403, []string{"insufficient_scope"}, nil, nil},
		{"lib/api/entities/ci/runner.rb: items lack tags, note, contact and token", reads, fmt.Sprintf("GET /groups/%d/runners?type=group_type", group), "", 200, []string{`"paused":false`}, []string{"tag_list", "maintenance_note", "contacted_at", "glrt-"}, nil},
		{offset + ": 20 of a page; the next of the last is empty", reads, "GET /groups/acme/runners", "", 200, nil, nil, map[string]string{"X-Per-Page": "20", "X-Next-Page": "", "X-Total": "2"}},
		{offset + ": 100 at most", reads, "GET /groups/acme/runners?per_page=1000", "", 200, nil, nil, map[string]string{"X-Per-Page": "100"}},
		{offset, reads, "GET /groups/acme/runners?per_page=1", "", 200, nil, nil, map[string]string{"X-Next-Page": "2"}},
		{runners + ": a foreign runner", manage, fmt.Sprintf("GET /runners/%d", foreign.ID), "", 403, []string{"No access granted"}, nil, nil},
		{runners, manage, "GET /runners/4711", "", 404, []string{`"message":"404`}, nil, nil},

		{runners + ": a paused one shows its pause instead of its status", manage, "PUT /runners/{runner}", `{"paused":true,"maximum_timeout":3600}`, 200, []string{`"paused":true`, `"active":false`, `"maximum_timeout":3600`}, nil, nil},
		{details + ": unnamed fields stay", manage, "PUT /runners/{runner}", `{"maximum_timeout":null}`, 200, []string{`"paused":true`, `"maximum_timeout":null`, `"maintenance_note":"a note"`}, nil, nil},
		{"app/models/ci/runner.rb", manage, "PUT /runners/{runner}", `{"maximum_timeout":60}`, 400, []string{"10 minutes"}, nil, nil},
		{"app/models/ci/runner.rb", manage, "PUT /runners/{runner}", `{"maintenance_note":"` + strings.Repeat("x", 1025) + `"}`, 400, []string{"maintenance_note"}, nil, nil},
		{runners + ": running jobs", manage, "GET /runners/{runner}/jobs?status=running", "", 200, []string{fmt.Sprintf(`"id":%d`, job), `"project":{"id":5`}, nil, nil},
		{runners + ": managers, not in pages", manage, "GET /runners/{runner}/managers?per_page=1", "", 200, []string{"[]"}, nil, map[string]string{"X-Next-Page": ""}},
		{"lib/api/ci/jobs.rb: api only", manage, fmt.Sprintf("POST /projects/5/jobs/%d/cancel", job), "", 403, []string{"insufficient_scope"}, nil, nil},
		{"lib/api/ci/jobs.rb: a project may forbid cancelling, by ci_restrict_pipeline_cancellation_role", api, fmt.Sprintf("POST /projects/6/jobs/%d/cancel", kept), "", 403, []string{"403 Forbidden"}, nil, nil},
		{"lib/api/helpers.rb, find_project!: a user who does not see the project", stranger, fmt.Sprintf("POST /projects/5/jobs/%d/cancel", job), "", 404, []string{"404 Project Not Found"}, nil, nil},
		{"lib/api/ci/jobs.rb: and a Reporter never", reporter, fmt.Sprintf("POST /projects/5/jobs/%d/cancel", job), "", 403, []string{"403 Forbidden"}, nil, nil},

		{runners + ": the new token is returned once", manage, "POST /runners/{runner}/reset_authentication_token", "", 201, []string{`"token":"glrt-`}, []string{runner.Token}, nil},
		{runners + ": running jobs do not prevent it", manage, "DELETE /runners/{runner}", "", 204, nil, nil, nil},
		{runners, manage, "DELETE /runners/{runner}", "", 404, []string{`"message":"404`}, nil, nil},
		{"lib/api/api.rb: an unknown path", api, "GET /nothing", "", 404, []string{`"error":"404 Not Found"`}, nil, nil},
	})
	if g.Contact(runner.Token, "s") != 0 {
		t.Error("the token from before a reset still works")
	}
	if j, _ := g.Job(job); j.Status != "failed" {
		t.Errorf("the job of a runner that was deleted: %+v", j)
	}
	if made := g.Runners()[1]; strings.Join(made.Tags, "|") != "a|b" || made.RunUntagged != true {
		t.Errorf("CommaSeparatedToArray of lib/api/validations/types, and the defaults: %+v", made)
	}
}

// The limits: headers on each response, and a rejection that is not JSON.
func TestGitLabContractLimits(t *testing.T) {
	g := forgetest.NewGitLab(t)
	api := g.AddToken(forgetest.GitLabToken{Scopes: []string{"api"}})
	at := time.Date(2030, 1, 1, 12, 0, 45, 0, time.UTC)
	g.Clock(func() time.Time { return at })
	g.Limit(1)
	const source = "lib/gitlab/rack_attack.rb"
	runLab(t, g, 0, []labStep{
		{source, api, "GET /metadata", "", 200, []string{`"version":"18.`}, nil, map[string]string{"RateLimit-Limit": "1", "RateLimit-Remaining": "0", "RateLimit-Reset": fmt.Sprint(at.Add(15 * time.Second).Unix())}},
		{source, api, "GET /metadata", "", 429, []string{"Retry later"}, nil, map[string]string{"Retry-After": "15", "Content-Type": "text/plain"}},
	})
}

// Files, commits and merge requests.
func TestGitLabContractChanges(t *testing.T) {
	g := forgetest.NewGitLab(t)
	g.AddProject("acme/config", map[string]string{"a/b.yaml": "1\n"})
	maintainer := g.AddToken(forgetest.GitLabToken{User: "mary", Level: 40, Scopes: []string{"api"}})
	developer := g.AddToken(forgetest.GitLabToken{User: "dan", Level: 30, Scopes: []string{"api"}})
	head := g.Log("acme/config", "main")[0].ID
	const p = "/projects/acme%2Fconfig"
	commit := func(branch, start, action string) string {
		return `{"branch":"` + branch + `",` + start + `"commit_message":"m","actions":[{` + action + `}]}`
	}
	start := `"start_sha":"` + head + `",`
	const service, mrs = "app/services/files/multi_service.rb", "lib/api/merge_requests.rb"
	runLab(t, g, 0, []labStep{
		{"lib/api/files.rb", developer, "GET " + p + "/repository/files/a%2Fb.yaml?ref=main", "", 200, []string{`"last_commit_id":"` + head, `"content":"MQo="`}, nil, nil},
		{"lib/api/files.rb", developer, "GET " + p + "/repository/files/none?ref=main", "", 404, []string{"404 File Not Found"}, nil, nil},
		{"lib/api/commits.rb: a protected branch", developer, "POST " + p + "/repository/commits", commit("main", "", `"action":"delete","file_path":"a/b.yaml"`), 403, []string{"not allowed to push"}, nil, nil},
		{service + ": the file has changed", developer, "POST " + p + "/repository/commits", commit("x", start, `"action":"update","file_path":"a/b.yaml","content":"2","last_commit_id":"`+strings.Repeat("0", 40)+`"`), 400, []string{"has changed since you started editing"}, nil, nil},
		{service, developer, "POST " + p + "/repository/commits", commit("x", start, `"action":"create","file_path":"a/b.yaml","content":"2"`), 400, []string{"already exists"}, nil, nil},
		{service, developer, "POST " + p + "/repository/commits", commit("x", start, `"action":"update","file_path":"a/b.yaml","content":"2\n","last_commit_id":"`+head+`"`), 201, []string{`"committer_name":"dan"`}, nil, nil},
		{"app/services/commits/create_service.rb: the branch is there", developer, "POST " + p + "/repository/commits", commit("x", start, `"action":"delete","file_path":"a/b.yaml"`), 400, []string{"A branch called 'x' already exists"}, nil, nil},
		{mrs, developer, "POST " + p + "/merge_requests", `{"source_branch":"x","target_branch":"main","title":"t"}`, 201, []string{`"iid":1`, `"detailed_merge_status":"mergeable"`}, nil, nil},
		{mrs + ": one open one", developer, "POST " + p + "/merge_requests", `{"source_branch":"x","target_branch":"main","title":"t"}`, 409, []string{"Another open merge request already exists"}, nil, nil},
		{mrs + ": a user without merge rights gets 401", developer, "PUT " + p + "/merge_requests/1/merge", `{}`, 401, nil, nil, nil},
		{mrs + ": another head", maintainer, "PUT " + p + "/merge_requests/1/merge", `{"sha":"` + head + `"}`, 409, []string{"SHA does not match HEAD of source branch"}, nil, nil},
		{"lib/api/entities/approvals.rb", developer, "GET " + p + "/merge_requests/1/approvals", "", 200, []string{`"approved_by":[]`}, nil, nil},
		{mrs, maintainer, "PUT " + p + "/merge_requests/1/merge", `{"should_remove_source_branch":true}`, 200, []string{`"state":"merged"`}, nil, nil},
		{mrs + ": once", maintainer, "PUT " + p + "/merge_requests/1/merge", `{}`, 405, nil, nil, nil},
		{"lib/api/branches.rb", maintainer, "DELETE " + p + "/repository/branches/x", "", 404, []string{"404 Branch Not Found"}, nil, nil},
	})
	if text, _ := g.File("acme/config", "main", "a/b.yaml"); text != "2\n" {
		t.Errorf("main has %q", text)
	}
}
