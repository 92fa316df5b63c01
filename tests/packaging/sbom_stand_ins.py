# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for spdx-tools, which a machine without a network does not have: enough that tools/sbom.py runs. The
document that they write has the relations alone, a line each."""
MODEL = '''
class Record:
    names, file_name = (), None

    def __init__(self, *given, **named):
        self.__dict__.update(zip(self.names, given), **named)


class Words:
    def __init__(self, *given):
        pass

    def __getattr__(self, name):
        return name

    def __call__(self, *given, **named):
        return Words()


class Checksum(Record):
    names = ("algorithm", "value")


class Document(Record):
    names = ("about",)


class ExtractedLicensingInfo(Record):
    names = ("license_id",)


class Relationship(Record):
    names = ("of", "kind", "to")


Package = Record
Actor = ActorType = ChecksumAlgorithm = CreationInfo = ExternalPackageRef = Words()
ExternalPackageRefCategory = PackagePurpose = RelationshipType = SpdxNoAssertion = Words()
'''
FILES = {
    "license_expression.py": "class Licensing:\n    def parse(self, terms):\n        return terms\n\n\n"
    "get_spdx_licensing = Licensing\n",
    "spdx_tools/spdx/model.py": MODEL,
    "spdx_tools/spdx/parser/parse_anything.py": "def parse_file(path):\n    return None\n",
    "spdx_tools/spdx/validation/document_validator.py":
    "def validate_full_spdx_document(document):\n    return []\n",
    "spdx_tools/spdx/writer/write_anything.py": "def write_file(document, path, validate):\n"
    "    with open(path, 'w', encoding='utf-8') as file:\n"
    "        for line in document.relationships:\n            print(line.of, line.kind, line.to, file=file)\n",
}


def write(folder):
    """Leaves them in the folder, for PYTHONPATH."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
