"""Components of Dagster for projects made with `dg`: what `tables/*.yaml` and `raw_logs/*.yaml` declare, as attributes.

A component has the fields of the declaration and makes what the pipeline makes of its file. It has no file that a job
could read, so jobs get the declaration itself (`declaration_file.text_of`; decision 0157).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from dagster import Component, ComponentLoadContext, Definitions
from dagster.components import ComponentTypeSpec
from pydantic import BaseModel, GetJsonSchemaHandler, RootModel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from assets.checks import build_table_checks
from assets.definition_metadata import Project
from assets.launcher import LAUNCHER, PipesLauncher
from assets.names import identifier
from jobs.requests.distribute import DistributeRequest
from pipelines.automation import Automation
from pipelines.catalog import build_assets, build_once
from pipelines.component_schema import as_written
from pipelines.distribution import build_raw_log_assets
from pipelines.raw_logs import DeclaredRawLog
from pipelines.tables import DeclaredTable
from storage_core.declaration import TableDeclaration
from storage_core.declaration_automation import read_automation
from storage_core.declaration_file import load_text, text_of
from storage_core.declaration_parts import Closed
from storage_core.errors import InvalidInput
from storage_core.raw_declaration import RawLogDeclaration
from storage_core.repeated import repeated

if TYPE_CHECKING:
    from dagster.components.core.component_tree import ComponentTree

PREFIX = "tidemark_"
"""The beginning of the names of jobs, schedules and sensors, so that a project may have an `ingest` of its own."""

_TEMPLATES = ("{{", "{%")
_MAKES = ("asset", "asset_check", "job", "schedule", "sensor")


class TableAttributes(RootModel[dict[str, Any]]):
    """The fields of `tables/*.yaml`, checked where the component is made."""

    @classmethod
    def __get_pydantic_json_schema__(cls, _: CoreSchema, __: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema of the declaration, by which editors complete and check a `defs.yaml`."""
        return as_written(TableDeclaration.model_json_schema())


class RawLogAttributes(RootModel[dict[str, Any]]):
    """The fields of `raw_logs/*.yaml`, checked where the component is made."""

    @classmethod
    def __get_pydantic_json_schema__(cls, _: CoreSchema, __: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema of the declaration, by which editors complete and check a `defs.yaml`."""
        return as_written(RawLogDeclaration.model_json_schema())


Declared = TypeVar("Declared", TableDeclaration, RawLogDeclaration)


class _Declaring(Component, Generic[Declared]):
    """A component that is a declaration. Raises `InvalidInput` with a line per problem, each with its field."""

    attributes: ClassVar[type[RootModel[dict[str, Any]]]]
    model: ClassVar[type[Closed]]

    declaration: Declared

    def __init__(self, **fields: object) -> None:
        self.text = text_of(fields)
        self.declaration = load_text(self.model, self.text, type(self).__name__)  # type: ignore[assignment]  # of the class

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """Return what Dagster reads the attributes of a `defs.yaml` with."""
        return cls.attributes

    @classmethod
    def get_spec(cls) -> ComponentTypeSpec:
        """Return what `dg` lists of the component."""
        return ComponentTypeSpec(description=(cls.__doc__ or "").partition("\n")[0], produces=_MAKES)

    @classmethod
    def load(cls, attributes: BaseModel | None, context: ComponentLoadContext) -> Self:
        """Return the component with these attributes, whose templates such as `{{ env.WAREHOUSE }}` are filled in."""
        given = attributes.root if isinstance(attributes, RootModel) else {}
        return cls(**_filled_in(given, context))

    @abstractmethod
    def build_defs(self, context: ComponentLoadContext) -> Definitions:
        """Return what the pipeline makes of the declaration."""


class TableComponent(_Declaring[TableDeclaration]):
    """A Tidemark table with the assets, checks, jobs, schedules and sensors of its upkeep; as in `tables/*.yaml`."""

    attributes = TableAttributes
    model = TableDeclaration

    def build_defs(self, context: ComponentLoadContext) -> Definitions:
        """Return the definitions of the table, fed by the project's raw logs; places are relative to the project."""
        project = _project_of(context, self)
        return _once(project, self, _of_table(self, project, context.project_root), context.project_root)


class RawLogComponent(_Declaring[RawLogDeclaration]):
    """A raw log that Tidemark tables get their rows from, with the assets of its upkeep; as in `raw_logs/*.yaml`."""

    attributes = RawLogAttributes
    model = RawLogDeclaration

    def build_defs(self, context: ComponentLoadContext) -> Definitions:
        """Return the definitions of the raw log; its tables are those of the project. Raises `InvalidInput`."""
        project = _project_of(context, self)
        return _once(project, self, _of_raw_log(self, project.tables, context.project_root), context.project_root)


def component_definitions(*components: TableComponent | RawLogComponent, root: Path | None = None) -> Definitions:
    """Return the definitions of components that are made in Python, in a project without a `defs` folder.

    Places in them are relative to `root`, by default the working directory.
    """
    project = _Project(
        [each for each in components if isinstance(each, TableComponent)],
        [each for each in components if isinstance(each, RawLogComponent)],
    )
    where = (root or Path.cwd()).resolve()
    return Definitions.merge(
        *(_of_table(each, project, where) for each in project.tables),
        *(_of_raw_log(each, project.tables, where) for each in project.raw_logs),
        _shared(project, where),
    )


@dataclass(frozen=True, slots=True)
class _Project:
    """Components that know of each other. Raises `InvalidInput` where two tables have one name or one place."""

    tables: Sequence[TableComponent] = ()
    raw_logs: Sequence[RawLogComponent] = ()

    def __post_init__(self) -> None:
        _require_apart([each.declaration for each in self.tables])

    def automation(self, root: Path) -> Automation:
        """Return the switches of its tables. Raises `InvalidInput` for an `automation.yaml` that is not sound."""
        raw_logs = [each.declaration for each in self.raw_logs]
        return Automation([each.declaration for each in self.tables], raw_logs, read_automation(root), PREFIX)


def _require_apart(declared: Sequence[TableDeclaration]) -> None:
    for what, values in (
        ("name", [identifier(each.name) for each in declared]),
        ("uri", [each.uri for each in declared]),
    ):
        if twice := repeated(values):
            raise InvalidInput(f"two TableComponents have the {what} {twice[0]!r}; give each table its own")


def _of_table(component: TableComponent, project: _Project, root: Path) -> Definitions:
    table = DeclaredTable(component.declaration.below(root))
    feeding = [_declared(each, (), root) for each in project.raw_logs]
    automated = project.automation(root).of(table.declaration)
    return Definitions(
        resources={LAUNCHER: _launcher(root)},
        assets=build_assets(table, feeding, None, Project(automated=automated)),
        asset_checks=build_table_checks(table.declaration),
    )


def _of_raw_log(component: RawLogComponent, tables: Sequence[TableComponent], root: Path) -> Definitions:
    raw, known = component.declaration, [each.declaration.name for each in tables]
    unknown = [name for name in raw.tables if name not in known]
    if unknown or not known:
        raise InvalidInput(
            f"raw log {raw.name!r}: no TableComponent declares {', '.join(unknown) or 'a table'}; add it to the "
            "project, or in Python give both to component_definitions"
        )
    declared = _declared(component, tables, root)
    return Definitions(resources={LAUNCHER: _launcher(root)}, assets=build_raw_log_assets(declared))


def _once(project: _Project, component: _Declaring[Any], own: Definitions, root: Path) -> Definitions:
    """The definitions of a component; those of its first have with them what the project has once."""
    first = next(iter([*project.tables, *project.raw_logs]))
    is_first = type(first) is type(component) and first.declaration.name == component.declaration.name
    return Definitions.merge(own, _shared(project, root)) if is_first else own


def _shared(project: _Project, root: Path) -> Definitions:
    """Jobs, schedules and the sensor of all components."""
    tables = [each.declaration.below(root) for each in project.tables]
    raw_logs = [_declared(each, project.tables, root) for each in project.raw_logs]
    return build_once(tables, raw_logs, None, project.automation(root), root=root)


def _declared(component: RawLogComponent, tables: Sequence[TableComponent], root: Path) -> DeclaredRawLog:
    texts = tuple(each.text for each in tables)
    return DeclaredRawLog(
        component.declaration, DistributeRequest(raw_log=component.text, tables=texts, root=str(root))
    )


def _project_of(context: ComponentLoadContext, component: _Declaring[Any]) -> _Project:
    """The components of the project; where there is no folder of them, the component alone."""
    tree = context.component_tree
    module: object = tree.defs_module  # of a component alone a stand-in
    if isinstance(module, ModuleType):
        return _read(tree, tree.state_tracker)
    if isinstance(component, TableComponent):
        return _Project([component])
    return _Project(raw_logs=[component] if isinstance(component, RawLogComponent) else [])


@lru_cache(maxsize=2)
def _read(tree: ComponentTree, _tracker: object) -> _Project:
    """The components in a folder, once for all of them: to look for them costs as much as they are.

    Trees of one folder are equal; what they have loaded tells them apart.
    """
    return _Project(tree.get_all_components(of_type=TableComponent), tree.get_all_components(of_type=RawLogComponent))


@cache
def _launcher(root: Path) -> PipesLauncher:
    """One per project, for definitions that are merged share it."""
    return PipesLauncher(root)


def _filled_in(value: Any, context: ComponentLoadContext) -> Any:
    """The value with its templates filled in. What is no template stays text: Dagster would make numbers of some."""
    if isinstance(value, Mapping):
        return {name: _filled_in(each, context) for name, each in value.items()}
    if isinstance(value, list):
        return [_filled_in(each, context) for each in value]
    if isinstance(value, str) and any(each in value for each in _TEMPLATES):
        return context.resolution_context.resolve_value(value)
    return value
