"""A Hub on loopback, as much of it as huggingface_hub needs: create, upload, download.

The token "good" may write; "reader" may not, which the Hub says beforehand; neither may "fine", of which it does not.
Small text files travel in the commit, others through LFS, as on the Hub. The name of a Space begins with "spaces/".
"""

import base64
import hashlib
import json
import re
import runpy
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote


METADATA = runpy.run_path(str(Path(__file__).parents[1] / "hub_metadata.py"))
ROLES = {"good": "write", "reader": "read", "fine": "fineGrained"}


class Hub:
    """State of the stand-in."""

    def __init__(self):
        self.commits: dict[str, dict[str, bytes]] = {}  # commit id -> path -> content
        self.branches: dict[str, dict[str, str]] = {}  # repository -> branch -> commit id
        self.private: set[str] = set()
        self.storage: dict[str, bytes] = {}  # LFS
        self.drop_uploads = False  # close the connection in the middle of a large file

    def add_commit(self, repo: str, branch: str, files: dict[str, bytes]) -> str:
        """Make a commit of these files and let the branch point to it."""
        text = json.dumps([repo, branch, len(self.commits), sorted(files)])
        commit = hashlib.sha1(text.encode()).hexdigest()
        self.commits[commit] = files
        self.branches.setdefault(repo, {})[branch] = commit
        return commit

    def resolve(self, repo: str, revision: str) -> str | None:
        """Commit id of a branch, or of itself."""
        branches = self.branches.get(repo, {})
        return branches.get(revision, revision if revision in self.commits else None)


class Handler(BaseHTTPRequestHandler):
    """The routes."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def reply(self, status: int, body: object = b"", **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", headers.pop("length", str(len(content))))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def fail(self, status: int, code: str, message: str) -> None:
        self.reply(status, {"error": message}, X_Error_Code=code, X_Error_Message=message)

    def handle_request(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) if self.command != "PUT" else b""
        address = f"http://{self.headers['Host']}"
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        path = unquote(self.path.split("?")[0])
        if self.command in ("GET", "HEAD"):
            return self.read(path, token)
        if self.command == "PUT" and path.startswith("/storage/"):
            if self.hub.drop_uploads:
                self.close_connection = True
                return self.connection.close()
            self.hub.storage[path.split("/")[2]] = self.rfile.read(int(self.headers["Content-Length"]))
            return self.reply(200)
        if path == "/api/validate-yaml":
            return self.validate(**json.loads(body))
        if token != "good":
            return self.fail(403 if token in ROLES else 401, "Unauthorized", "Invalid username or password.")
        if path == "/api/repos/create":
            return self.create(json.loads(body), address)
        if match := re.fullmatch(r"/(.+)\.git/info/lfs/objects/batch", path):
            objects = [
                {**entry, "actions": {"upload": {"href": f"{address}/storage/{entry['oid']}"}}}
                for entry in json.loads(body)["objects"]
            ]
            return self.reply(200, {"transfer": "basic", "objects": objects})
        if match := re.fullmatch(r"/api/(?:models|(spaces/))/?(.+?)/(preupload|commit)/(.+)", path):
            prefix, repo, verb, revision = match.groups("")
            repo = prefix + repo
            if repo not in self.hub.branches:
                return self.fail(404, "RepoNotFound", "Repository not found")
            return getattr(self, verb)(repo, revision, body, address)
        return self.fail(404, "RouteNotFound", f"no route {path}")

    do_GET = do_HEAD = do_POST = do_PUT = handle_request  # noqa: N815

    def validate(self, content: str, repoType: str) -> None:  # noqa: N803
        check = METADATA["space_metadata_errors" if repoType == "space" else "metadata_errors"]
        errors = [{"message": message} for message in check(content)]
        if errors:
            return self.reply(400, {"error": errors[0]["message"], "errors": errors, "warnings": []})
        empty = (
            [] if METADATA["metadata_of"](content) else [{"message": "empty or missing yaml metadata in repo card"}]
        )
        return self.reply(200, {"errors": [], "warnings": empty})

    def create(self, request: dict, address: str) -> None:
        repo = f"{request['organization']}/{request['name']}" if request.get("organization") else request["name"]
        repo = repo if "/" in repo else f"me/{repo}"
        if request.get("type") == "space":
            if request.get("sdk") not in ("gradio", "docker", "static"):
                return self.fail(400, "BadRequest", "a Space needs an sdk")
            repo = f"spaces/{repo}"
        if repo in self.hub.branches:
            return self.reply(409, {"error": "You already created this model repo", "url": f"{address}/{repo}"})
        if request.get("private") or request.get("visibility") == "private":
            self.hub.private.add(repo)
        self.hub.add_commit(repo, "main", {".gitattributes": b""})
        return self.reply(200, {"url": f"{address}/{repo}", "id": repo, "name": repo})

    def preupload(self, repo: str, revision: str, body: bytes, address: str) -> None:
        files = [
            {
                "path": entry["path"],
                "uploadMode": "lfs" if entry["path"].endswith(".safetensors") else "regular",
                "shouldIgnore": False,
            }
            for entry in json.loads(body)["files"]
        ]
        self.reply(200, {"files": files})

    def commit(self, repo: str, revision: str, body: bytes, address: str) -> None:
        parent = self.hub.resolve(repo, revision)
        if parent is None:
            return self.fail(404, "RevisionNotFound", f"no revision {revision}")
        files = dict(self.hub.commits[parent])
        for line in body.decode().splitlines():
            entry = json.loads(line)
            if entry["key"] == "file":
                files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            elif entry["key"] == "lfsFile":
                files[entry["value"]["path"]] = self.hub.storage[entry["value"]["oid"]]
        commit = self.hub.add_commit(repo, revision, files)
        result = {"commitOid": commit, "commitUrl": f"{address}/{repo}/commit/{commit}", "success": True}
        return self.reply(200, result)

    def read(self, path: str, token: str) -> None:
        if path == "/api/whoami-v2":
            if token not in ROLES:
                return self.fail(401, "Unauthorized", "no")
            auth = {"type": "access_token", "accessToken": {"displayName": token, "role": ROLES[token]}}
            return self.reply(200, {"type": "user", "name": "me", "auth": auth})
        # In the address as sent, a "/" in a revision is quoted, and one in the name of a file is not.
        match = re.fullmatch(r"/(.+?)/resolve/([^/]+)/(.+)", self.path.split("?")[0]) or re.fullmatch(
            r"/api/(?:models/)?(.+?)(?:/(?:revision|tree)/(.+))?", path
        )
        if match is None:
            return self.fail(404, "RouteNotFound", f"no route {path}")
        repo, revision, *name = (unquote(part) if part else part for part in match.groups())
        if repo not in self.hub.branches or (repo in self.hub.private and token != "good"):
            return self.fail(404, "RepoNotFound", "Repository not found")
        commit = self.hub.resolve(repo, revision or "main")
        if commit is None and "/tree/" in path and self.hub.resolve(repo, revision.rpartition("/")[0]) is not None:
            return self.fail(404, "EntryNotFound", "no repository of these tests has folders")
        if commit is None:
            return self.fail(404, "RevisionNotFound", f"no revision {revision}")
        files = self.hub.commits[commit]
        if not name:
            siblings = [{"rfilename": file} for file in files]
            if "/tree/" in path:
                tree = [{"type": "file", "path": f, "size": len(c), "oid": "0" * 40} for f, c in files.items()]
                return self.reply(200, tree)
            private = repo in self.hub.private
            return self.reply(200, {"id": repo, "sha": commit, "siblings": siblings, "private": private, "tags": []})
        if name[0] not in files:
            return self.fail(404, "EntryNotFound", f"no file {name[0]}")
        content = files[name[0]]
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        return self.reply(200, content, ETag=etag, X_Repo_Commit=commit, length=str(len(content)))


def start() -> tuple[Hub, ThreadingHTTPServer]:
    handler = type("BoundHandler", (Handler,), {"hub": Hub()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return handler.hub, server
